// normalize: out[r] = (x[r] - mean) / sqrt(variance + epsilon) · weight + bias, or x[r] / sqrt(mean of x[r]²
// + epsilon) · weight. add_normalized adds that to out[r].
//
// x and out [rows, width]. Each element takes 8 bytes and about 8 operations, 4 for an RMS norm. The limit is
// bandwidth. For a few rows, it is the latency of two sums over a block, or of one sum for an RMS norm. The
// kernel is in normalize.cuh.
#include "kernels/cuda/normalize.cuh"

#include "kernels/cuda/cuda_device.h"

namespace staircase {

void CudaDevice::normalize(const Tensor& x, const Norm& norm, Tensor& out) {
  if (listed(Operation::kNormalize, x, norm, out)) return;
  cuda::launch_normalize<false>(x, norm, out.data<float>(), stream());
}

void CudaDevice::add_normalized(const Tensor& x, const Norm& norm, Tensor& out) {
  if (listed(Operation::kAddNormalized, x, norm, out)) return;
  cuda::launch_normalize<true>(x, norm, out.data<float>(), stream());
}

}  // namespace staircase
