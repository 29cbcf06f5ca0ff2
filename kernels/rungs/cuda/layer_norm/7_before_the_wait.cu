// Weight and bias do not depend on any kernel. So the kernel starts while the previous one still runs
// (programmatic dependent launch), requests them, and then waits for x. After the wait, only one load and two
// sums remain.
#include "kernels/cuda/device_functions.cuh"
#include "kernels/rungs/cuda/layer_norm/layer_norm.h"

namespace staircase::rungs::gpu_layer_norm {
namespace {

constexpr int kOwn = kWidest / 32;

__global__ void normalize(LayerNorm n) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) / 32, first = row * n.width;
  const auto for_each = [&](const auto& use) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      if (row < n.rows && lane + j * 32 < n.width) use(j, lane + j * 32);
    }
  };
  float weight[kOwn], bias[kOwn];
  for_each([&](int j, int i) { weight[j] = __ldg(n.weight + i), bias[j] = __ldg(n.bias + i); });
  let_next_begin();
  wait_for_previous();  // from here on, x is complete

  float own[kOwn], sum = 0.0f, squares = 0.0f;
  for_each([&](int j, int i) { own[j] = n.x[first + i]; });
  for_each([&](int j, int) { sum += own[j]; });
  const float mean = warp_sum(sum) / static_cast<float>(n.width);
  for_each([&](int j, int) { squares += (own[j] - mean) * (own[j] - mean); });
  const float scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(n.width) + n.epsilon);
  for_each([&](int j, int i) { n.y[first + i] = (own[j] - mean) * scale * weight[j] + bias[j]; });
}

void start(const LayerNorm& n, Stream stream) {
  stream.overlaps = true;
  launch("a rung was started", stream, blocks(divide_up(n.rows, kThreads / 32)), kThreads, 0, normalize, n);
}

}  // namespace

constexpr LayerNormRung kBeforeTheWait{"7-before-the-wait", "weight and bias are requested before x is there",
                                       start};

}  // namespace staircase::rungs::gpu_layer_norm
