// One block per row: neighbouring threads read neighbouring numbers. The largest number must be known before
// the first exponential, and the sum before the first result, so all threads wait for each other twice.
#include "kernels/cuda/device_functions.cuh"
#include "kernels/rungs/cuda/softmax/softmax.h"

namespace staircase::rungs::gpu_softmax {
namespace {

__global__ void softmax(Softmax s) {
  const int thread = static_cast<int>(threadIdx.x), first = static_cast<int>(blockIdx.x) * s.width;
  const float* const x = s.x + first;
  float largest = x[0], sum = 0.0f;
  for (int i = thread; i < s.width; i += kThreads) largest = fmaxf(largest, x[i]);
  largest = block_max<kThreads>(largest);
  for (int i = thread; i < s.width; i += kThreads) sum += expf(x[i] - largest);
  sum = block_sum<kThreads>(sum);
  for (int i = thread; i < s.width; i += kThreads) s.y[first + i] = expf(x[i] - largest) / sum;
}

void start(const Softmax& s, Stream stream) {
  launch("a rung was started", stream, blocks(s.rows), kThreads, 0, softmax, s);
}

}  // namespace

constexpr SoftmaxRung kBlock{"2-block", "a block for each row", start};

}  // namespace staircase::rungs::gpu_softmax
