// The definition in three passes, with one thread per row: the largest number, the sum of the exponentials,
// and their shares. Without subtracting the largest, exp(100) would already be infinite in float32.
#include "kernels/cuda/device_functions.cuh"
#include "kernels/rungs/cuda/softmax/softmax.h"

namespace staircase::rungs::gpu_softmax {
namespace {

__global__ void softmax(Softmax s) {
  const int row = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (row >= s.rows) return;
  const float* const x = s.x + row * s.width;
  float largest = x[0], sum = 0.0f;
  for (int i = 1; i < s.width; ++i) largest = fmaxf(largest, x[i]);
  for (int i = 0; i < s.width; ++i) sum += expf(x[i] - largest);
  for (int i = 0; i < s.width; ++i) s.y[row * s.width + i] = expf(x[i] - largest) / sum;
}

void start(const Softmax& s, Stream stream) {
  launch("a rung was started", stream, blocks(divide_up(s.rows, kThreads)), kThreads, 0, softmax, s);
}

}  // namespace

constexpr SoftmaxRung kThread{"1-thread", "a thread for each row, in three passes", start};

}  // namespace staircase::rungs::gpu_softmax
