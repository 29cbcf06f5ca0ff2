// Each thread keeps its numbers of the row in registers. x is read once instead of three times, and a thread
// requests all its loads before it uses the first.
#include "kernels/cuda/device_functions.cuh"
#include "kernels/rungs/cuda/layer_norm/layer_norm.h"

namespace staircase::rungs::gpu_layer_norm {
namespace {

constexpr int kOwn = kWidest / kThreads;

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
  // Calls use(j, i) for each of the thread's numbers: number j of its own is number i of the row.
  const auto for_each = [&](const auto& use) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      if (thread + j * kThreads < n.width) use(j, thread + j * kThreads);
    }
  };
  float own[kOwn], sum = 0.0f, squares = 0.0f;
  for_each([&](int j, int i) { own[j] = n.x[first + i]; });
  for_each([&](int j, int) { sum += own[j]; });
  const float mean = sum_of_block(sum) / static_cast<float>(n.width);
  for_each([&](int j, int) { squares += (own[j] - mean) * (own[j] - mean); });
  const float scale = 1.0f / sqrtf(sum_of_block(squares) / static_cast<float>(n.width) + n.epsilon);
  for_each([&](int j, int i) { n.y[first + i] = (own[j] - mean) * scale * n.weight[i] + n.bias[i]; });
}

void start(const LayerNorm& n, Stream stream) {
  launch("a rung was started", stream, blocks(n.rows), kThreads, 0, normalize, n);
}

}  // namespace

constexpr LayerNormRung kRegisters{"4-registers", "x is read once and stays in registers", start};

}  // namespace staircase::rungs::gpu_layer_norm
