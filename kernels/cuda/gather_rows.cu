// gather_rows: out[i] = x[indices[i]]. x [rows, width], out [n, width]: every byte of out is read and written
// once; the limit is bandwidth.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/device_tensors.cuh"

namespace staircase {
namespace cuda {

constexpr int kGatherThreads = 256;

/// One block per row.
template <typename Element>
__global__ __launch_bounds__(kGatherThreads) void gather(const Element* x, const std::int32_t* indices,
                                                         int width, Element* out) {
  begin_after_previous();
  const Element* const from = x + static_cast<std::int64_t>(indices[blockIdx.x]) * width;
  Element* const to = out + static_cast<std::int64_t>(blockIdx.x) * width;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kGatherThreads) to[i] = from[i];
}

}  // namespace cuda

void CudaDevice::gather_rows(const Tensor& x, const Tensor& indices, Tensor& out) {
  if (listed(Operation::kGatherRows, x, indices, out)) return;
  cuda::with_type(out.dtype(), out.data<void>(), [&]<typename Element>(Element* to) {
    cuda::launch("gather_rows was started", stream(), cuda::blocks(out.dim(0)), cuda::kGatherThreads, 0,
                 cuda::gather<Element>, x.data<Element>(), indices.data<std::int32_t>(),
                 static_cast<int>(x.dim(1)), to);
  });
}

}  // namespace staircase
