// copy_positions: copies entries of a cache to another cache, or towards the start of the same cache.
//
// from and to [n_rows, n_kv_head, capacity, head_size]: the positions of a head are contiguous, so each head
// is one piece of count · head_size elements, read and written once.
#include <cstring>

#include "kernels/cpu/cpu_device.h"

namespace staircase {

void CpuDevice::do_copy_positions(const Tensor& from, std::int64_t from_first, std::int64_t count, Tensor& to,
                                  std::int64_t to_first) {
  const auto position_bytes = static_cast<std::int64_t>(size_of(from.dtype())) * from.dim(3);
  const std::int64_t from_stride = from.dim(2) * position_bytes, to_stride = to.dim(2) * position_bytes;
  parallel_ranges(team_, from.dim(0) * from.dim(1), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t head = first; head < last; ++head) {
      std::memmove(to.data<std::byte>() + head * to_stride + to_first * position_bytes,
                   from.data<std::byte>() + head * from_stride + from_first * position_bytes,
                   static_cast<std::size_t>(count * position_bytes));
    }
  });
}

}  // namespace staircase
