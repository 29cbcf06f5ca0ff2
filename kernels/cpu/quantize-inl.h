// How weights, rows of x, keys and values are quantized: to 8 bits or, for weights, keys and values, to 4
// bits, in groups with a scale (int8_int4_tile.h, kept_size in device.h). This file is included once for each
// SIMD target (see Highway's foreach_target.h).
#if defined(STAIRCASE_QUANTIZE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STAIRCASE_QUANTIZE_INL_H_
#undef STAIRCASE_QUANTIZE_INL_H_
#else
#define STAIRCASE_QUANTIZE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/int8_int4_tile.h"
#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace staircase {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Ints = hn::Rebind<std::int32_t, Floats>;

/// The larger of `largest` and |x|, compared as bits. Bits of positive floats have the order of the numbers,
/// and NaN is above them all.
HWY_INLINE hn::Vec<Ints> larger(hn::Vec<Ints> largest, hn::Vec<Floats> x) {
  return hn::Max(largest, hn::BitCast(Ints(), hn::Abs(x)));
}

/// The integers nearest to x / scale, ties to even, within least .. most.
HWY_INLINE hn::Vec<Ints> nearest(hn::Vec<Floats> x, hn::Vec<Floats> scale, std::int32_t least,
                                 std::int32_t most) {
  const Floats d;
  // If all numbers are 0, or so small that the scale becomes 0, they become 0.
  const auto divisor = hn::IfThenElse(hn::Eq(scale, hn::Zero(d)), hn::Inf(d), scale);
  const auto whole = hn::NearestInt(hn::Div(x, divisor));
  return hn::Max(hn::Min(whole, hn::Set(Ints(), most)), hn::Set(Ints(), least));
}

/// Quantizes a row of x in groups.
template <std::int64_t kValues>
HWY_INLINE void quantize_row(const float* x, std::int64_t depth, Int8Row<kValues>* row) {
  const Floats d;
  const hn::Rebind<std::int8_t, Floats> bytes;
  HWY_ALIGN float last[kValues];
  for (std::int64_t k = 0; k < depth; k += kValues, x += kValues, ++row) {
    if (depth - k < kValues) {
      std::fill(std::copy_n(x, depth - k, last), last + kValues, 0.0f);
      x = last;
    }
    auto largest = hn::Zero(Ints());
    for (std::int64_t i = 0; i < kValues; i += kLanes) largest = larger(largest, hn::LoadU(d, x + i));
    row->scale = hn::GetLane(hn::BitCast(d, hn::MaxOfLanes(Ints(), largest))) / 127.0f;
    auto sum = hn::Zero(Ints());
    for (std::int64_t i = 0; i < kValues; i += kLanes) {
      const auto whole = nearest(hn::LoadU(d, x + i), hn::Set(d, row->scale), -127, 127);
      sum = hn::Add(sum, whole);
      hn::StoreU(hn::DemoteTo(bytes, whole), bytes, row->values + i);
    }
    row->sum = hn::GetLane(hn::SumOfLanes(Ints(), sum));
  }
}

/// Quantizes a head's keys or values at one position of an int8 cache, and stores their scale (kept_size).
/// `count` is a multiple of head_multiple(DType::kInt8).
HWY_INLINE void narrow(const float* x, std::int64_t count, std::int8_t* out) {
  const Floats d;
  const hn::Rebind<std::int8_t, Floats> bytes;
  auto largest = hn::Zero(Ints());
  for (std::int64_t i = 0; i < count; i += kLanes) largest = larger(largest, hn::LoadU(d, x + i));
  const float scale = hn::GetLane(hn::BitCast(d, hn::MaxOfLanes(Ints(), largest))) / 127.0f;
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const auto whole = nearest(hn::LoadU(d, x + i), hn::Set(d, scale), -127, 127);
    hn::StoreU(hn::DemoteTo(bytes, whole), bytes, out + i);
  }
  std::memcpy(out + count, &scale, sizeof scale);
}

/// The least number and the step of a group of an int4 cache, as stored.
struct LevelEnds {
  std::uint16_t least, step;  ///< bfloat16

  /// Writes the levels of the group x to `out`.
  HWY_INLINE void levels(const float* x, std::uint8_t* out) const {
    const Floats d;
    const hn::Rebind<std::uint8_t, Floats> bytes;
    for (std::int64_t i = 0; i < kInt4CacheGroup; i += kLanes) {
      const auto above = hn::Sub(hn::LoadU(d, x + i), hn::Set(d, float32_from_bfloat16(least)));
      const auto whole = nearest(above, hn::Set(d, float32_from_bfloat16(step)), 0, 15);
      hn::StoreU(hn::DemoteTo(bytes, whole), bytes, out + i);
    }
  }
};

/// Returns the ends with the least squared error for the levels that `ends` gives the group x, by linear
/// regression. In double precision, neither the order of a sum nor a fused multiplication changes what
/// bfloat16 keeps. So every processor, and a GPU, stores the same bytes.
HWY_INLINE LevelEnds fitted(const float* x, LevelEnds ends) {
  constexpr int kCount = kInt4CacheGroup;
  std::uint8_t levels[kCount];
  ends.levels(x, levels);
  const double least = static_cast<double>(float32_from_bfloat16(ends.least));
  int of_levels = 0, squares = 0;
  double of_numbers = 0.0, products = 0.0;
  for (int i = 0; i < kCount; ++i) {
    const double number = static_cast<double>(x[i]) - least;
    of_levels += levels[i];
    squares += levels[i] * levels[i];
    of_numbers += number;
    products += levels[i] * number;
  }
  const int variance = kCount * squares - of_levels * of_levels;
  if (variance == 0) return ends;  // all levels are equal, or numbers are not finite
  const double step = (kCount * products - of_levels * of_numbers) / variance;
  return {bfloat16_from_float32(static_cast<float>(least + (of_numbers - step * of_levels) / kCount)),
          bfloat16_from_float32(static_cast<float>(step))};
}

/// Quantizes a rotated head's keys or values at one position of an int4 cache (KeysValues in device.h).
HWY_INLINE void narrow(const float* x, std::int64_t count, Int4Byte* out) {
  constexpr std::int64_t kHalf = kInt4CacheGroup / 2;
  const Floats d;
  auto* const stored = reinterpret_cast<std::uint8_t*>(out);
  for (std::int64_t group = 0; group < count / kInt4CacheGroup; ++group) {
    HWY_ALIGN float own[kInt4CacheGroup];
    const float* const first = x + group / 2 * 2 * kInt4CacheGroup + group % 2 * kHalf;
    std::copy_n(first, kHalf, own);
    std::copy_n(first + kInt4CacheGroup, kHalf, own + kHalf);
    auto smallest = hn::Load(d, own), largest = smallest;
    for (std::int64_t i = kLanes; i < kInt4CacheGroup; i += kLanes) {
      smallest = hn::Min(smallest, hn::Load(d, own + i));
      largest = hn::Max(largest, hn::Load(d, own + i));
    }
    // Of 0 and -0, processors differ in which is the smaller: + 0 turns -0 into 0.
    const float least = hn::GetLane(hn::MinOfLanes(d, smallest)) + 0.0f,
                range = hn::GetLane(hn::MaxOfLanes(d, largest)) - least + 0.0f;
    const LevelEnds ends = fitted(own, {bfloat16_from_float32(least), bfloat16_from_float32(range / 15.0f)});
    std::uint8_t levels[kInt4CacheGroup];
    ends.levels(own, levels);
    for (std::int64_t i = 0; i < kHalf; ++i) {
      stored[group * kHalf + i] = static_cast<std::uint8_t>(levels[i] | levels[kHalf + i] << 4);
    }
    std::memcpy(stored + count / 2 + group * 4, &ends, sizeof ends);
  }
}

/// Returns and stores the scales of outputs, given each output's weight furthest from zero.
HWY_INLINE hn::Vec<Floats> scales_for(hn::Vec<Floats> furthest, float* scales) {
  const Floats d;
  const auto scale = hn::Div(hn::Abs(furthest), hn::Set(d, 127.0f));
  hn::StoreU(scale, d, scales);
  return scale;
}
HWY_INLINE hn::Vec<Floats> load_scales(const float* scales) {
  return load_wide(scales);
}
HWY_INLINE hn::Vec<Floats> load_scales(const std::uint16_t* scales) {
  return load_wide(reinterpret_cast<const hwy::bfloat16_t*>(scales));
}
HWY_INLINE hn::Vec<Floats> scales_for(hn::Vec<Floats> furthest, std::uint16_t* scales) {
  const Floats d;
  HWY_ALIGN float wide[kLanes];
  hn::Store(hn::Mul(furthest, hn::Set(d, -1.0f / 8)), d, wide);
  std::transform(wide, wide + kLanes, scales, bfloat16_from_float32);
  return load_scales(scales);
}

/// Quantizes one group along the depth for the outputs of a panel. values [Panel::kInputs, kPanel].
template <typename Panel>
HWY_INLINE void quantize_panel(const float* values, Panel& panel) {
  const Floats d;
  const Ints ints;
  constexpr std::int32_t kAdded = Panel::kAdded, kLeast = Panel::kBits == 8 ? -127 : -8, kMost = kAdded - 1;
  for (std::int64_t column = 0; column < kPanel; column += kLanes) {
    // Of two values equally far from zero, choose the first. The distance is kept in a variable: if it is
    // computed again as |furthest|, clang 19 with -O3 gets a wrong one.
    auto furthest = hn::Zero(d), distance = hn::Zero(d);
    for (std::int64_t k = 0; k < Panel::kInputs; ++k) {
      const auto value = hn::LoadU(d, values + k * kPanel + column);
      furthest = hn::IfThenElse(hn::Gt(hn::Abs(value), distance), value, furthest);
      distance = hn::Max(distance, hn::Abs(value));
    }
    const auto scale = scales_for(furthest, panel.scales + column);
    for (std::int64_t k = 0; k < Panel::kInputs; k += kQuad * Panel::kInByte) {
      // Each lane becomes four adjacent bytes.
      auto quad = hn::Zero(ints);
      for (std::int64_t i = 0; i < kQuad * Panel::kInByte; ++i) {
        const auto whole = nearest(hn::LoadU(d, values + (k + i) * kPanel + column), scale, kLeast, kMost);
        const auto shift = static_cast<int>(i % kQuad * 8 + i / kQuad * Panel::kBits);
        quad = hn::Or(quad, hn::ShiftLeftSame(hn::Add(whole, hn::Set(ints, kAdded)), shift));
      }
      hn::StoreU(quad, ints,
                 reinterpret_cast<std::int32_t*>(panel.values[k / kQuad / Panel::kInByte][column]));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace staircase
HWY_AFTER_NAMESPACE();

#endif
