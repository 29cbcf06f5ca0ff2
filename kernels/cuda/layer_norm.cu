// layer_norm: out[r] = (x[r] - mean) / sqrt(variance + epsilon) · weight + bias.
//
// x and out [rows, width]. About 8 operations and 8 bytes for each element: limited by bandwidth, and for a
// few rows by the latency of two sums over a warp.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/normalize.cuh"

namespace staircase {
namespace cuda {

constexpr int kNormThreads = 128;
constexpr int kRowsPerBlock = kNormThreads / kWarp;

/// A warp for each row.
template <int kVector>
__global__ __launch_bounds__(kNormThreads) void normalize(const float* x, Norm norm, int rows, int width,
                                                          float* out) {
  take_turn();
  const int row = static_cast<int>(blockIdx.x) * kRowsPerBlock + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= rows) return;
  const std::int64_t place = static_cast<std::int64_t>(row) * width;
  normalize_row<kVector>(x + place, norm, width, out + place);
}

}  // namespace cuda

void CudaDevice::layer_norm(const Tensor& x, const LayerNorm& norm, Tensor& out) {
  if (listed(Operation::kLayerNorm, x, norm, out)) return;
  const std::int64_t rows = x.dim(0), width = x.dim(1);
  cuda::launch("layer_norm was started", stream(),
               cuda::blocks(cuda::divide_up<std::int64_t>(rows, cuda::kRowsPerBlock)), cuda::kNormThreads, 0,
               width % 4 == 0 ? cuda::normalize<4> : cuda::normalize<1>, x.data<float>(), cuda::Norm(norm),
               static_cast<int>(rows), static_cast<int>(width), out.data<float>());
}

}  // namespace staircase
