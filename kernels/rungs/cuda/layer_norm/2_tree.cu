// One block per row: neighbouring threads read neighbouring numbers, and each of 128 threads has a part of
// the sum. They add up the parts in shared memory, as a tree: 64 threads add the numbers 64 places further,
// then 32 threads the numbers 32 places further, down to one.
//
// No thread may read before the others have written, so each level needs a barrier: 9 for one sum, 18 for
// both sums.
#include "kernels/cuda/device_functions.cuh"
#include "kernels/rungs/cuda/layer_norm/layer_norm.h"

namespace staircase::rungs::gpu_layer_norm {
namespace {

/// The sum of the values of all threads, returned to each of them.
__device__ float sum_of_block(float value) {
  __shared__ float parts[kThreads];
  parts[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    __syncthreads();
  }
  const float sum = parts[0];
  __syncthreads();  // the next sum overwrites the parts
  return sum;
}

__global__ void normalize(LayerNorm n) {
  const int thread = static_cast<int>(threadIdx.x), first = static_cast<int>(blockIdx.x) * n.width;
  const float* const x = n.x + first;
  float sum = 0.0f, squares = 0.0f;
  for (int i = thread; i < n.width; i += kThreads) sum += x[i];
  const float mean = sum_of_block(sum) / static_cast<float>(n.width);
  for (int i = thread; i < n.width; i += kThreads) squares += (x[i] - mean) * (x[i] - mean);
  const float scale = 1.0f / sqrtf(sum_of_block(squares) / static_cast<float>(n.width) + n.epsilon);
  for (int i = thread; i < n.width; i += kThreads)
    n.y[first + i] = (x[i] - mean) * scale * n.weight[i] + n.bias[i];
}

void start(const LayerNorm& n, Stream stream) {
  launch("a rung was started", stream, blocks(n.rows), kThreads, 0, normalize, n);
}

}  // namespace

constexpr LayerNormRung kTree{"2-tree", "a block for each row, sums as a tree in shared memory", start};

}  // namespace staircase::rungs::gpu_layer_norm
