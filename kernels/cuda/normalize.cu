// layer_norm: out[r] = (x[r] - mean) / sqrt(variance + epsilon) · weight + bias.
//
// x and out [rows, width]. About 8 operations and 8 bytes for each element: limited by bandwidth, and for a
// few rows by the latency of two sums over a warp. The kernel is in layer_norm.cuh.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/layer_norm.cuh"

namespace staircase {

void CudaDevice::layer_norm(const Tensor& x, const LayerNorm& norm, Tensor& out) {
  if (listed(Operation::kLayerNorm, x, norm, out)) return;
  cuda::launch_normalize(x, norm, out.data<float>(), stream());
}

}  // namespace staircase
