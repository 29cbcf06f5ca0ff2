// Several blocks share a row, because rung 3 uses only one of 132 multiprocessors for one row of 50,257
// logits. Each block reads at least 1,024 numbers and stores its part. Blocks cannot wait for each other, so
// a second kernel merges the parts of each row and writes y.
#include <algorithm>

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

/// How many numbers a block reads: whole sectors, so that no sector is read by two blocks.
__device__ int share_of(int width) {
  return divide_up(divide_up(width, static_cast<int>(gridDim.x)), 32) * 32;
}

__global__ void add_up(Softmax s) {
  const int share = share_of(s.width), row = static_cast<int>(blockIdx.y);
  const int first = static_cast<int>(blockIdx.x) * share, last = min(first + share, s.width);
  Part part = nothing();
  for (int i = first + static_cast<int>(threadIdx.x); i < last; i += kThreads)
    part = merged(part, {s.x[row * s.width + i], 1.0f});
  part = merged_in_block(part);
  if (threadIdx.x == 0) s.parts[row * kBlocks + static_cast<int>(blockIdx.x)] = part;
}

__global__ void divide(Softmax s) {
  const int share = share_of(s.width), row = static_cast<int>(blockIdx.y);
  const int first = static_cast<int>(blockIdx.x) * share, last = min(first + share, s.width);
  const int thread = static_cast<int>(threadIdx.x);
  Part part = thread < static_cast<int>(gridDim.x) ? s.parts[row * kBlocks + thread] : nothing();
  part = merged_in_block(part);
  for (int i = first + thread; i < last; i += kThreads)
    s.y[row * s.width + i] = expf(s.x[row * s.width + i] - part.largest) / part.sum;
}

void start(const Softmax& s, Stream stream) {
  const int sharers = std::min(kBlocks, divide_up(s.width, 1024));
  const dim3 grid(blocks(sharers), blocks(s.rows));
  launch("the parts were added up", stream, grid, kThreads, 0, add_up, s);
  launch("the parts were divided", stream, grid, kThreads, 0, divide, s);
}

}  // namespace

constexpr SoftmaxRung kSplit{"4-split", "blocks share a row, in two kernels", start};

}  // namespace staircase::rungs::gpu_softmax
