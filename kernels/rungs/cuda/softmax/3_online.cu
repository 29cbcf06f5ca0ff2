// One pass finds both the largest number and the sum (online softmax): at each larger number, the sum so far
// is multiplied by exp(old largest - new largest). The row is read twice instead of three times, and the
// threads wait for each other once.
#include "kernels/cuda/device_functions.cuh"
#include "kernels/rungs/cuda/softmax/softmax.h"

namespace staircase::rungs::gpu_softmax {
namespace {

/// The part of an empty set of numbers.
__device__ Part nothing() {
  return {-1e30f, 0.0f};
}

/// The largest and the sum for the numbers of both parts (Milakov and Gimelshein 2018, section 3.1).
__device__ Part merged(Part a, Part b) {
  const float largest = fmaxf(a.largest, b.largest);
  return {largest, a.sum * expf(a.largest - largest) + b.sum * expf(b.largest - largest)};
}

/// Merges the parts of all threads of a block, and returns the result to each of them. A block may call this
/// once.
__device__ Part merged_in_block(Part part) {
  __shared__ Part warps[kThreads / 32];
  for (int distance = 16; distance > 0; distance /= 2) {
    part = merged(part, {__shfl_xor_sync(kAllLanes, part.largest, distance),
                         __shfl_xor_sync(kAllLanes, part.sum, distance)});
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = part;
  __syncthreads();
  return merged(merged(warps[0], warps[1]), merged(warps[2], warps[3]));
}

__global__ void softmax(Softmax s) {
  const int thread = static_cast<int>(threadIdx.x), first = static_cast<int>(blockIdx.x) * s.width;
  const float* const x = s.x + first;
  Part part = nothing();
  for (int i = thread; i < s.width; i += kThreads) part = merged(part, {x[i], 1.0f});
  part = merged_in_block(part);
  for (int i = thread; i < s.width; i += kThreads) s.y[first + i] = expf(x[i] - part.largest) / part.sum;
}

void start(const Softmax& s, Stream stream) {
  launch("a rung was started", stream, blocks(s.rows), kThreads, 0, softmax, s);
}

}  // namespace

constexpr SoftmaxRung kOnline{"3-online", "largest and sum in one pass", start};

}  // namespace staircase::rungs::gpu_softmax
