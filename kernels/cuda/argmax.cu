// argmax: out[r] = the index of the largest number of x[r], the lowest one among equals, or -1 if any is not
// finite. x [rows, width]: every number is read once. Only the indices are copied to the host: 4 bytes per
// row instead of the 201,028 bytes of GPT-2's logits. The next pass does not even wait for that copy, because
// this kernel also writes its tokens and positions.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/device_functions.cuh"

namespace staircase {
namespace cuda {

constexpr int kArgmaxThreads = 1024;

/// One block per row.
__global__ __launch_bounds__(kArgmaxThreads) void largest(const float* x, int width, std::int32_t* out,
                                                          std::int32_t* tokens, std::int32_t* starts) {
  __shared__ Found warps[kArgmaxThreads / kWarp];
  begin_after_previous();
  const float* const row = x + static_cast<std::int64_t>(blockIdx.x) * width;
  Found own{-INFINITY, width};
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kArgmaxThreads) {
    const float value = row[i];
    own = larger(own, fabsf(value) < INFINITY ? Found{value, i} : Found{INFINITY, -1});
  }
  own = warp_largest(own);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane == 0) warps[threadIdx.x / kWarp] = own;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  own = warp_largest(warps[lane]);
  if (lane != 0) return;
  out[blockIdx.x] = own.index;
  if (tokens == nullptr) return;
  tokens[blockIdx.x] = max(own.index, 0);
  ++starts[blockIdx.x];
}

}  // namespace cuda

void CudaDevice::argmax(const Tensor& x, Tensor& out, Batch* batch) {
  if (listed(Operation::kArgmax, x, out, batch == nullptr ? Batch{} : *batch)) return;
  const auto data = [&](Tensor Batch::*part) {
    return batch == nullptr ? nullptr : (batch->*part).data<std::int32_t>();
  };
  cuda::launch("argmax was started", stream(), cuda::blocks(x.dim(0)), cuda::kArgmaxThreads, 0, cuda::largest,
               x.data<float>(), static_cast<int>(x.dim(1)), out.data<std::int32_t>(), data(&Batch::tokens),
               data(&Batch::starts));
}

}  // namespace staircase
