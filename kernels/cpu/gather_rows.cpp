// gather_rows: out[i] = x[indices[i]]. x [rows, width], out [n, width]: every byte of out is read and written
// once.
#include "kernels/cpu/cpu_device.h"

namespace staircase {

void CpuDevice::gather_rows(const Tensor& x, const Tensor& indices, Tensor& out) {
  const auto row_bytes = x.dim(1) * static_cast<std::int64_t>(size_of(x.dtype()));
  const auto* const index = indices.data<std::int32_t>();
  each_few_rows(out, [&](IndexRange rows) {
    for (std::int64_t i = rows.first; i < rows.last; ++i) {
      std::copy_n(x.data<std::byte>() + index[i] * row_bytes, row_bytes,
                  out.data<std::byte>() + i * row_bytes);
    }
  });
}

}  // namespace staircase
