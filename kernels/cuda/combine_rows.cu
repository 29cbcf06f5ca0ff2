// combine_rows: out[r] = Σ_j shares[r, j] · x[places[r, j]], or out[r] += that.
//
// x [n, width], places and shares [rows, k], out [rows, width]. Two operations for each 4 bytes of x; the
// limit is bandwidth, or launch latency for a few rows.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/device_functions.cuh"

namespace staircase {
namespace cuda {

constexpr int kCombineThreads = 256;

/// One block per row.
__global__ __launch_bounds__(kCombineThreads) void weighted_sum(const float* x, const std::int32_t* places,
                                                                const float* shares, int k, int width,
                                                                bool adds, float* out) {
  begin_after_previous();
  const std::int64_t row = blockIdx.x;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kCombineThreads) {
    float sum = adds ? out[row * width + i] : 0.0f;
    for (std::int64_t j = row * k; j < (row + 1) * k; ++j) {
      sum += shares[j] * x[static_cast<std::int64_t>(places[j]) * width + i];
    }
    out[row * width + i] = sum;
  }
}

}  // namespace cuda

void CudaDevice::combine_rows(const Tensor& x, const Tensor& places, const Tensor& shares, Epilogue epilogue,
                              Tensor& out) {
  if (listed(Operation::kCombineRows, x, places, shares, epilogue, out)) return;
  cuda::launch("combine_rows was started", stream(), cuda::blocks(out.dim(0)), cuda::kCombineThreads, 0,
               cuda::weighted_sum, x.data<float>(), places.data<std::int32_t>(), shares.data<float>(),
               static_cast<int>(places.dim(1)), static_cast<int>(out.dim(1)), epilogue == Epilogue::kAdd,
               out.data<float>());
}

}  // namespace staircase
