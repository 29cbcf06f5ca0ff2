// The definition, with one thread per row: the mean, then the variance from the differences to it, then y.
//
// The row is read three times, and neighbouring lanes read numbers of different rows, so each request touches
// 32 sectors. With 8 rows, only 8 threads of the GPU work.
#include "kernels/cuda/device_functions.cuh"
#include "kernels/rungs/cuda/layer_norm/layer_norm.h"

namespace staircase::rungs::gpu_layer_norm {
namespace {

__global__ void normalize(LayerNorm n) {
  const int row = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (row >= n.rows) return;
  const float* const x = n.x + row * n.width;
  float mean = 0.0f, squares = 0.0f;
  for (int i = 0; i < n.width; ++i) mean += x[i];
  mean /= static_cast<float>(n.width);
  for (int i = 0; i < n.width; ++i) squares += (x[i] - mean) * (x[i] - mean);
  const float scale = 1.0f / sqrtf(squares / static_cast<float>(n.width) + n.epsilon);
  for (int i = 0; i < n.width; ++i) n.y[row * n.width + i] = (x[i] - mean) * scale * n.weight[i] + n.bias[i];
}

void start(const LayerNorm& n, Stream stream) {
  launch("a rung was started", stream, blocks(divide_up(n.rows, kThreads)), kThreads, 0, normalize, n);
}

}  // namespace

constexpr LayerNormRung kThread{"1-thread", "a thread for each row", start};

}  // namespace staircase::rungs::gpu_layer_norm
