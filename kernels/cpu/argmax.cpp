// argmax: the index of the largest value, the lowest one among equals.
//
// Reads 4 bytes per value: limited by bandwidth. First it finds the largest value, lane by lane, then the
// first index of that value. A row of a tensor is first checked for non-finite numbers.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/argmax.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h must precede this: it sets the target.
#include <hwy/highway.h>

#include <algorithm>

#include "kernels/cpu/cpu_device.h"

HWY_BEFORE_NAMESPACE();
namespace staircase {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_ATTR std::int32_t argmax_row(const float* x, std::int64_t width) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t whole = width / lanes * lanes;
  // Two independent maxima: neither waits for the other.
  auto even = hn::Set(d, x[0]), odd = even;
  std::int64_t i = 0;
  for (; i + lanes < whole; i += 2 * lanes) {
    even = hn::Max(even, hn::LoadU(d, x + i));
    odd = hn::Max(odd, hn::LoadU(d, x + i + lanes));
  }
  if (i < whole) even = hn::Max(even, hn::LoadU(d, x + i));
  float largest = hn::GetLane(hn::MaxOfLanes(d, hn::Max(even, odd)));
  for (i = whole; i < width; ++i) largest = std::max(largest, x[i]);

  for (i = 0; i < whole; i += lanes) {
    const auto found = hn::Eq(hn::LoadU(d, x + i), hn::Set(d, largest));
    if (!hn::AllFalse(d, found)) return static_cast<std::int32_t>(i + hn::FindFirstTrue(d, found));
  }
  while (i < width && x[i] != largest) ++i;
  return i < width ? static_cast<std::int32_t>(i) : 0;  // only NaN is not found
}

}  // namespace HWY_NAMESPACE
}  // namespace staircase
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace staircase {

HWY_EXPORT(argmax_row);

int argmax(std::span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(argmax_row)(values.data(), static_cast<std::int64_t>(values.size()));
}

void CpuDevice::argmax(const Tensor& x, Tensor& out, Batch* batch) {
  const std::int64_t width = x.dim(1);
  each_few_rows(x, [&](IndexRange rows) {
    for (std::int64_t r = rows.first; r < rows.last; ++r) {
      const std::span row(x.data<float>() + r * width, static_cast<std::size_t>(width));
      const std::int32_t index = all_finite(row) ? staircase::argmax(row) : -1;
      out.data<std::int32_t>()[r] = index;
      if (batch == nullptr) continue;
      batch->tokens.data<std::int32_t>()[r] = std::max(index, 0);
      ++batch->starts.data<std::int32_t>()[r];
    }
  });
}

}  // namespace staircase
#endif  // HWY_ONCE
