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
#include <cmath>
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

  HWY_INLINE hn::Vec<Ints> levels(hn::Vec<Floats> x) const {
    const Floats d;
    const auto above = hn::Sub(x, hn::Set(d, float32_from_bfloat16(least)));
    return nearest(above, hn::Set(d, float32_from_bfloat16(step)), 0, 15);
  }
};

constexpr std::uint16_t kBFloat16NaN = 0x7FC0;

/// Returns the ends for levels from the least to the largest number of the group x.
HWY_INLINE LevelEnds ends_of(const float* x) {
  const Floats d;
  auto smallest = hn::LoadU(d, x), largest = smallest;
  for (std::int64_t i = kLanes; i < kInt4CacheGroup; i += kLanes) {
    smallest = hn::Min(smallest, hn::LoadU(d, x + i));
    largest = hn::Max(largest, hn::LoadU(d, x + i));
  }
  // Of 0 and -0, processors differ in which is the smaller: + 0 turns -0 into 0.
  const float least = hn::GetLane(hn::MinOfLanes(d, smallest)) + 0.0f,
              range = hn::GetLane(hn::MaxOfLanes(d, largest)) - least + 0.0f;
  if (!std::isfinite(range)) return {kBFloat16NaN, kBFloat16NaN};  // processors differ in the sign of NaN
  return {bfloat16_from_float32(least), bfloat16_from_float32(range / 15.0f)};
}

/// Returns the ends with the least squared error for the levels that `ends` gives the group x, by linear
/// regression. In double precision, neither the order of a sum nor a fused multiplication changes what
/// bfloat16 keeps: products with sums of levels are exact, unlike those with `step`, which is rounded. So
/// every processor, and a GPU, stores the same bytes.
HWY_INLINE LevelEnds fitted(const float* x, LevelEnds ends) {
  constexpr int kCount = kInt4CacheGroup;
  HWY_ALIGN std::int32_t levels[kCount];
  auto level_sums = hn::Zero(Ints()), square_sums = level_sums;
  for (int i = 0; i < kCount; i += kLanes) {
    const auto own = ends.levels(hn::LoadU(Floats(), x + i));
    hn::Store(own, Ints(), levels + i);
    level_sums = hn::Add(level_sums, own);
    square_sums = hn::Add(square_sums, hn::Mul(own, own));
  }
  const double least = static_cast<double>(float32_from_bfloat16(ends.least));
  double of_numbers = 0.0, products = 0.0;
#if HWY_HAVE_FLOAT64
  const hn::CappedTag<double, 8> doubles;  // half as many lanes as in Floats
  const hn::Rebind<float, decltype(doubles)> floats;
  const hn::Rebind<std::int32_t, decltype(doubles)> ints;
  auto number_sums = hn::Zero(doubles), product_sums = number_sums;
  for (int i = 0; i < kCount; i += static_cast<int>(hn::MaxLanes(doubles))) {
    const auto number = hn::Sub(hn::PromoteTo(doubles, hn::LoadU(floats, x + i)), hn::Set(doubles, least));
    number_sums = hn::Add(number_sums, number);
    product_sums = hn::MulAdd(hn::PromoteTo(doubles, hn::Load(ints, levels + i)), number, product_sums);
  }
  of_numbers = hn::GetLane(hn::SumOfLanes(doubles, number_sums));
  products = hn::GetLane(hn::SumOfLanes(doubles, product_sums));
#else  // Highway has no vectors of doubles for WebAssembly
  for (int i = 0; i < kCount; ++i) {
    const double number = static_cast<double>(x[i]) - least;
    of_numbers += number;
    products += levels[i] * number;
  }
#endif
  const int of_levels = hn::GetLane(hn::SumOfLanes(Ints(), level_sums)),
            squares = hn::GetLane(hn::SumOfLanes(Ints(), square_sums));
  const int variance = kCount * squares - of_levels * of_levels;
  if (variance == 0) return ends;  // all levels are equal, or numbers are not finite
  const double above = (squares * of_numbers - of_levels * products) / variance,
               step = (kCount * products - of_levels * of_numbers) / variance;
  return {bfloat16_from_float32(static_cast<float>(least + above)),
          bfloat16_from_float32(static_cast<float>(step))};
}

/// Stores the levels of the group x.
HWY_INLINE void store_levels(const float* x, LevelEnds ends, std::uint8_t* out) {
  const hn::Rebind<std::uint8_t, Floats> bytes;
  std::uint8_t levels[kInt4CacheGroup];
  for (std::int64_t i = 0; i < kInt4CacheGroup; i += kLanes) {
    hn::StoreU(hn::DemoteTo(bytes, ends.levels(hn::LoadU(Floats(), x + i))), bytes, levels + i);
  }
  // Each level has four bits, so eight bytes can be shifted as one number.
  std::uint64_t low, high;
  static_assert(2 * sizeof low == sizeof levels);
  std::memcpy(&low, levels, sizeof low);
  std::memcpy(&high, levels + sizeof low, sizeof high);
  low |= high << 4;
  std::memcpy(out, &low, sizeof low);
}

/// Quantizes a rotated head's keys or values at one position of an int4 cache (KeysValues in device.h). Each
/// step of a group waits for the one before it, so several groups take a step together.
HWY_INLINE void narrow(const float* x, std::int64_t count, Int4Byte* out) {
  constexpr std::int64_t kHalf = kInt4CacheGroup / 2, kTogether = 4;
  auto* const stored = reinterpret_cast<std::uint8_t*>(out);
  for (std::int64_t first = 0; first < count / kInt4CacheGroup; first += kTogether) {
    const std::int64_t some = std::min(kTogether, count / kInt4CacheGroup - first);
    HWY_ALIGN float numbers[kTogether][kInt4CacheGroup];
    LevelEnds ends[kTogether];
    for (std::int64_t g = 0; g < some; ++g) {
      const float* const own = x + (first + g) / 2 * 2 * kInt4CacheGroup + g % 2 * kHalf;
      std::copy_n(own, kHalf, numbers[g]);
      std::copy_n(own + kInt4CacheGroup, kHalf, numbers[g] + kHalf);
    }
    for (std::int64_t g = 0; g < some; ++g) ends[g] = ends_of(numbers[g]);
    for (std::int64_t g = 0; g < some; ++g) ends[g] = fitted(numbers[g], ends[g]);
    for (std::int64_t g = 0; g < some; ++g) store_levels(numbers[g], ends[g], stored + (first + g) * kHalf);
    std::memcpy(stored + count / 2 + first * std::int64_t{sizeof(LevelEnds)}, ends,
                static_cast<std::size_t>(some) * sizeof(LevelEnds));
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
