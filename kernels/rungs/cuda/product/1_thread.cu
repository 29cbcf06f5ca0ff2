// The definition: one thread per output multiplies a row of x by a row of W.
#include "kernels/cuda/device_functions.cuh"
#include "kernels/rungs/cuda/product/product.h"

namespace staircase::rungs::gpu_product {
namespace {

constexpr int kThreads = 128;

__global__ void multiply(Product p) {
  const int o = static_cast<int>(blockIdx.x * kThreads + threadIdx.x), r = static_cast<int>(blockIdx.y);
  if (o >= p.n_out) return;
  const float *const x = p.row_of_x(r), *const w = p.row_of_w<float>(o);
  float sum = 0.0f;
  for (int i = 0; i < p.n_in; ++i) sum += x[i] * w[i];
  p.y[static_cast<std::int64_t>(r) * p.n_out + o] = sum;
}

void start(const Product& p, Stream stream) {
  const dim3 grid(blocks(divide_up(p.n_out, kThreads)), blocks(p.rows));
  launch("a rung was started", stream, grid, kThreads, 0, multiply, p);
}

}  // namespace

constexpr ProductRung kThread{"1-thread", "a thread for each output", Stored::kFloat32, start};

}  // namespace staircase::rungs::gpu_product
