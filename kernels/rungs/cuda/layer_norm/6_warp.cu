// One warp per row: it shares nothing with other warps, so no barrier remains. Each lane keeps up to 32
// numbers. Two sums by shuffles are cheap, so the merging of rung 5 is no longer needed.
#include "kernels/cuda/device_functions.cuh"
#include "kernels/rungs/cuda/layer_norm/layer_norm.h"

namespace staircase::rungs::gpu_layer_norm {
namespace {

constexpr int kOwn = kWidest / 32;

__global__ void normalize(LayerNorm n) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) / 32, first = row * n.width;
  if (row >= n.rows) return;  // the whole warp
  const auto for_each = [&](const auto& use) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      if (lane + j * 32 < n.width) use(j, lane + j * 32);
    }
  };
  float own[kOwn], sum = 0.0f, squares = 0.0f;
  for_each([&](int j, int i) { own[j] = n.x[first + i]; });
  for_each([&](int j, int) { sum += own[j]; });
  const float mean = warp_sum(sum) / static_cast<float>(n.width);
  for_each([&](int j, int) { squares += (own[j] - mean) * (own[j] - mean); });
  const float scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(n.width) + n.epsilon);
  for_each([&](int j, int i) { n.y[first + i] = (own[j] - mean) * scale * n.weight[i] + n.bias[i]; });
}

void start(const LayerNorm& n, Stream stream) {
  launch("a rung was started", stream, blocks(divide_up(n.rows, kThreads / 32)), kThreads, 0, normalize, n);
}

}  // namespace

constexpr LayerNormRung kWarpPerRow{"6-warp", "a warp for each row: no barrier", start};

}  // namespace staircase::rungs::gpu_layer_norm
