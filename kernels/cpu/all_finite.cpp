// all_finite: whether no value is infinite or NaN. Without their signs, infinity and NaN have the largest bit
// patterns of all floats, so the largest pattern decides.
//
// Reads 4 bytes per value: limited by bandwidth.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/all_finite.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h must precede this: it sets the target.
#include <hwy/highway.h>

#include <bit>
#include <cstdint>

#include "kernels/device.h"

HWY_BEFORE_NAMESPACE();
namespace staircase {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_ATTR bool all_values_finite(const float* x, std::int64_t count) {
  constexpr std::int32_t kWithoutSign = 0x7fffffff, kInfinity = 0x7f800000;
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> bits;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto size_at = [&](std::int64_t i) HWY_ATTR {
    return hn::And(hn::BitCast(bits, hn::LoadU(d, x + i)), hn::Set(bits, kWithoutSign));
  };
  // Two independent maxima: neither waits for the other.
  auto even = hn::Zero(bits), odd = even;
  std::int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    even = hn::Max(even, size_at(i));
    odd = hn::Max(odd, size_at(i + lanes));
  }
  bool finite = hn::AllTrue(bits, hn::Lt(hn::Max(even, odd), hn::Set(bits, kInfinity)));
  for (; i < count; ++i) finite &= (std::bit_cast<std::int32_t>(x[i]) & kWithoutSign) < kInfinity;
  return finite;
}

}  // namespace HWY_NAMESPACE
}  // namespace staircase
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace staircase {

HWY_EXPORT(all_values_finite);

bool all_finite(std::span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(all_values_finite)(values.data(), static_cast<std::int64_t>(values.size()));
}

}  // namespace staircase
#endif  // HWY_ONCE
