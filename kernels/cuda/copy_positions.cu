// copy_positions: copies cache entries to another tensor, or towards the start of the same one.
//
// from and to [n_rows, n_kv_head, capacity, head_size]. The positions of a head are adjacent, so each head is
// one piece of count · head_size elements, read and written once; the limit is bandwidth.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/device_functions.cuh"

namespace staircase {
namespace cuda {

constexpr int kCopyThreads = 1024;

/// One block per head copies from front to back. Within one tensor, entries only move towards the start. Each
/// iteration reads before it writes, and no later iteration reads the elements that it wrote.
template <typename Unit>
__global__ __launch_bounds__(kCopyThreads) void copy_heads(const Unit* from, std::int64_t from_stride,
                                                           std::int64_t count, Unit* to,
                                                           std::int64_t to_stride) {
  begin_after_previous();
  from += blockIdx.x * from_stride;
  to += blockIdx.x * to_stride;
  for (std::int64_t first = 0; first < count; first += kCopyThreads) {
    const std::int64_t i = first + threadIdx.x;
    Unit value{};
    if (i < count) value = from[i];
    __syncthreads();
    if (i < count) to[i] = value;
  }
}

/// Copies in units of type Unit.
template <typename Unit>
void copy_positions(Stream stream, const Tensor& from, std::int64_t from_first, std::int64_t count,
                    Tensor& to, std::int64_t to_first) {
  const std::int64_t units = from.dim(3) * static_cast<std::int64_t>(size_of(from.dtype())) /
                             static_cast<std::int64_t>(sizeof(Unit));
  launch("copy_positions was started", stream, blocks(from.dim(0) * from.dim(1)), kCopyThreads, 0,
         copy_heads<Unit>, from.data<Unit>() + from_first * units, from.dim(2) * units, count * units,
         to.data<Unit>() + to_first * units, to.dim(2) * units);
}

}  // namespace cuda

void CudaDevice::do_copy_positions(const Tensor& from, std::int64_t from_first, std::int64_t count,
                                   Tensor& to, std::int64_t to_first) {
  if (listed(Operation::kCopyPositions, from, from_first, count, to, to_first)) return;
  const auto aligned = [](const Tensor& tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor.data<void>()) % sizeof(float4) == 0;
  };
  const bool wide = from.dim(3) * static_cast<std::int64_t>(size_of(from.dtype())) % 16 == 0;
  const auto copy = wide && aligned(from) && aligned(to) ? cuda::copy_positions<float4>
                    : size_of(from.dtype()) == 4         ? cuda::copy_positions<float>
                                                         : cuda::copy_positions<std::uint16_t>;
  copy(stream(), from, from_first, count, to, to_first);
}

}  // namespace staircase
