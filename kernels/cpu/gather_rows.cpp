// gather_rows: out[i] = x[indices[i]]. x [rows, width], out [n, width]: n · width · 8 bytes moved.
#include "kernels/cpu/cpu_device.h"

namespace staircase {

void CpuDevice::gather_rows(const Tensor& x, const Tensor& indices, Tensor& out) {
  const std::int64_t width = x.dim(1);
  const auto* const index = indices.data<std::int32_t>();
  for (std::int64_t i = 0; i < out.dim(0); ++i) {
    std::copy_n(x.data<float>() + index[i] * width, width, out.data<float>() + i * width);
  }
}

}  // namespace staircase
