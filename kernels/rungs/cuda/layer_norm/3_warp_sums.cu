// The lanes of a warp exchange registers without a barrier. So each warp adds up its own 32 parts, and only
// the four sums of the warps are stored in shared memory. That takes one barrier per sum, and one before the
// next sum overwrites the four.
#include "kernels/cuda/device_functions.cuh"
#include "kernels/rungs/cuda/layer_norm/layer_norm.h"

namespace staircase::rungs::gpu_layer_norm {
namespace {

/// The sum of the values of all threads, returned to each of them.
__device__ float sum_of_block(float value) {
  __shared__ float warps[kThreads / 32];
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  const float sum = warps[0] + warps[1] + warps[2] + warps[3];
  __syncthreads();  // the next sum overwrites them
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

constexpr LayerNormRung kWarpSums{"3-warp-sums", "lanes exchange registers, four sums meet", start};

}  // namespace staircase::rungs::gpu_layer_norm
