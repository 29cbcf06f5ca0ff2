// layer_norm: out[r] = (x[r] - mean) / sqrt(variance + epsilon) · weight + bias.
//
// x and out [rows, width]. About 8 operations and 8 bytes for each element: limited by bandwidth, and for a
// few rows by the latency of two sums over a block. A row is read three times, but from memory only once: it
// stays in the L1 cache. The mean comes first and the variance from the differences to it: the sum of squares
// minus the squared mean would cancel, and the residual stream of a GPT-2 has a few features that are
// hundreds of times larger than the others.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/device_functions.cuh"

namespace staircase {
namespace cuda {

constexpr int kNormThreads = 256;

/// One block a row.
__global__ __launch_bounds__(kNormThreads) void normalize(const float* x, const float* weight,
                                                          const float* bias, float epsilon, int width,
                                                          float* out) {
  const float* const row = x + static_cast<std::int64_t>(blockIdx.x) * width;
  float* const out_row = out + static_cast<std::int64_t>(blockIdx.x) * width;
  const int first = static_cast<int>(threadIdx.x);

  float sum = 0.0f;
  for (int i = first; i < width; i += kNormThreads) sum += row[i];
  const float mean = block_sum<kNormThreads>(sum) / static_cast<float>(width);

  float squares = 0.0f;
  for (int i = first; i < width; i += kNormThreads) squares += (row[i] - mean) * (row[i] - mean);
  const float variance = block_sum<kNormThreads>(squares) / static_cast<float>(width);
  const float scale = 1.0f / sqrtf(variance + epsilon);

  for (int i = first; i < width; i += kNormThreads)
    out_row[i] = (row[i] - mean) * scale * weight[i] + bias[i];
}

}  // namespace cuda

void CudaDevice::layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon,
                            Tensor& out) {
  if (listed(Operation::kLayerNorm, x, weight, bias, epsilon, out)) return;
  cuda::launch("layer_norm was started", stream(), cuda::blocks(x.dim(0)), cuda::kNormThreads, 0,
               cuda::normalize, x.data<float>(), weight.data<float>(), bias.data<float>(), epsilon,
               static_cast<int>(x.dim(1)), out.data<float>());
}

}  // namespace staircase
