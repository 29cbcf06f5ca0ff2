// softmax of logits, from which tokens are sampled: x[i] = exp(x[i] - max) / Σ exp(x[j] - max), on the host.
//
// x [n]: three passes over 4 · n bytes, with about 20 operations per exponential. If the row fits into the
// cache, arithmetic is the limit.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/softmax.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h must precede this: it sets the target.
#include <hwy/contrib/math/math-inl.h>

#include <cmath>

#include "kernels/cpu/cpu_device.h"

HWY_BEFORE_NAMESPACE();
namespace staircase {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_ATTR float softmax_of(float* x, std::int64_t count, float largest) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t whole = count / lanes * lanes;
  // A long sum in float32 loses small terms, so short float32 sums are added in double.
  constexpr int kShort = 64;
  double sum = 0.0;
  int summed = 0;
  auto sums = hn::Zero(d);
  for (std::int64_t i = 0; i < whole; i += lanes) {
    const auto logits = hn::LoadU(d, x + i);
    // If only a few tokens are left, most vectors hold only -infinity.
    if (hn::AllTrue(d, hn::Eq(logits, hn::Set(d, -HUGE_VALF)))) {
      hn::StoreU(hn::Zero(d), d, x + i);
      continue;
    }
    auto value = hn::Exp(d, hn::Sub(logits, hn::Set(d, largest)));
    value = hn::IfThenElse(hn::IsNaN(logits), logits, value);  // for NaN, Exp returns 0
    hn::StoreU(value, d, x + i);
    sums = hn::Add(sums, value);
    if (++summed % kShort > 0) continue;
    sum += hn::GetLane(hn::SumOfLanes(d, sums));
    sums = hn::Zero(d);
  }
  sum += hn::GetLane(hn::SumOfLanes(d, sums));
  for (std::int64_t i = whole; i < count; ++i) sum += x[i] = std::exp(x[i] - largest);
  const float factor = 1.0f / static_cast<float>(sum);
  for (std::int64_t i = 0; i < whole; i += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, factor)), d, x + i);
  }
  for (std::int64_t i = whole; i < count; ++i) x[i] *= factor;
  return static_cast<float>(sum);
}

}  // namespace HWY_NAMESPACE
}  // namespace staircase
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace staircase {

HWY_EXPORT(softmax_of);

bool softmax_in_place(std::span<float> x) {
  if (x.empty()) return false;
  const float largest = x[static_cast<std::size_t>(argmax(x))];
  if (!std::isfinite(largest)) return false;
  return std::isfinite(
      HWY_DYNAMIC_DISPATCH(softmax_of)(x.data(), static_cast<std::int64_t>(x.size()), largest));
}

}  // namespace staircase
#endif  // HWY_ONCE
