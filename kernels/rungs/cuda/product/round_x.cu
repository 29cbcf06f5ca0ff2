// Rounds x to bfloat16, for the rungs that use tensor cores.
#include "kernels/cuda/device_functions.cuh"
#include "kernels/rungs/cuda/product/product.h"

namespace staircase::rungs::gpu_product {
namespace {

constexpr int kThreads = 128;

__global__ void round(Product p) {
  begin_after_previous();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < static_cast<std::int64_t>(p.rows) * p.stride)
    reinterpret_cast<__nv_bfloat16*>(p.rounded_x)[i] = narrow<__nv_bfloat16>(p.x[i]);
}

}  // namespace

void round_x(const Product& p, Stream stream) {
  const std::int64_t count = static_cast<std::int64_t>(p.rows) * p.stride;
  launch("x was rounded", stream, blocks(divide_up<std::int64_t>(count, kThreads)), kThreads, 0, round, p);
}

}  // namespace staircase::rungs::gpu_product
