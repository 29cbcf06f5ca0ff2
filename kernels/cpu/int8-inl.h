// Weights and rows of x in 8 bits (int8_tile.h): how they are rounded, and their products. It is included
// once for each SIMD target (see Highway's foreach_target.h).
#if defined(STAIRCASE_INT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STAIRCASE_INT8_INL_H_
#undef STAIRCASE_INT8_INL_H_
#else
#define STAIRCASE_INT8_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/int8_tile.h"
#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace staircase {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Ints = hn::Rebind<std::int32_t, Floats>;

/// The larger of `largest` and |x|, as bits: they are in the order of the numbers, and NaN is above them all.
HWY_INLINE hn::Vec<Ints> larger(hn::Vec<Ints> largest, hn::Vec<Floats> x) {
  return hn::Max(largest, hn::BitCast(Ints(), hn::Abs(x)));
}

/// The nearest whole numbers to x / scale, of two equally near the even one, within -127 .. 127.
HWY_INLINE hn::Vec<Ints> nearest(hn::Vec<Floats> x, hn::Vec<Floats> scale) {
  const Floats d;
  // Where all are 0, or so small that 127 steps are no number of their own, they become 0.
  const auto divisor = hn::IfThenElse(hn::Eq(scale, hn::Zero(d)), hn::Inf(d), scale);
  const auto whole = hn::NearestInt(hn::Div(x, divisor));
  return hn::Max(hn::Min(whole, hn::Set(Ints(), 127)), hn::Set(Ints(), -127));
}

/// A row of x in groups.
HWY_INLINE void quantize_row(const float* x, std::int64_t depth, Int8Row* row) {
  const Floats d;
  const hn::Rebind<std::int8_t, Floats> bytes;
  HWY_ALIGN float last[kGroup];
  for (std::int64_t k = 0; k < depth; k += kGroup, x += kGroup, ++row) {
    if (depth - k < kGroup) {
      std::fill(std::copy_n(x, depth - k, last), last + kGroup, 0.0f);
      x = last;
    }
    auto largest = hn::Zero(Ints());
    for (std::int64_t i = 0; i < kGroup; i += kLanes) largest = larger(largest, hn::LoadU(d, x + i));
    row->scale = hn::GetLane(hn::BitCast(d, hn::MaxOfLanes(Ints(), largest))) / 127.0f;
    auto sum = hn::Zero(Ints());
    for (std::int64_t i = 0; i < kGroup; i += kLanes) {
      const auto whole = nearest(hn::LoadU(d, x + i), hn::Set(d, row->scale));
      sum = hn::Add(sum, whole);
      hn::StoreU(hn::DemoteTo(bytes, whole), bytes, row->values + i);
    }
    row->start = -128 * hn::GetLane(hn::SumOfLanes(Ints(), sum));
  }
}

/// `count` neighbours of the depth, kGroup at most, for the outputs of a panel: values [count, kPanel].
HWY_INLINE void quantize_panel(const float* values, std::int64_t count, Int8Panel& panel) {
  const Floats d;
  const Ints ints;
  for (std::int64_t column = 0; column < kPanel; column += kLanes) {
    auto largest = hn::Zero(ints);
    for (std::int64_t k = 0; k < count; ++k)
      largest = larger(largest, hn::LoadU(d, values + k * kPanel + column));
    const auto scale = hn::Div(hn::BitCast(d, largest), hn::Set(d, 127.0f));
    hn::StoreU(scale, d, panel.scales + column);
    for (std::int64_t k = 0; k < kGroup; k += kQuad) {
      // A lane becomes the four bytes that lie side by side.
      auto quad = hn::Zero(ints);
      for (std::int64_t i = std::min(k + kQuad, count) - 1; i >= k; --i) {
        const auto whole = nearest(hn::LoadU(d, values + i * kPanel + column), scale);
        const auto byte = hn::And(whole, hn::Set(ints, 0xFF));
        quad = hn::Or(quad, i - k == 0   ? byte
                            : i - k == 1 ? hn::ShiftLeft<8>(byte)
                            : i - k == 2 ? hn::ShiftLeft<16>(byte)
                                         : hn::ShiftLeft<24>(byte));
      }
      const auto with_128 = hn::Xor(quad, hn::Set(ints, static_cast<std::int32_t>(0x80808080)));
      hn::StoreU(with_128, ints, reinterpret_cast<std::int32_t*>(panel.values[k / kQuad][column]));
    }
  }
}

#if HWY_TARGET == HWY_SCALAR

/// Int8Tile one number at a time.
template <int kRows, int kColumns>
void multiply_int8_tile(const Int8Row* x, std::int64_t x_stride, const Int8Panel* w, std::int64_t column,
                        std::int64_t groups, float* result) {
  for (std::int64_t g = 0; g < groups; ++g) {
    for (int r = 0; r < kRows; ++r) {
      const Int8Row& row = x[r * x_stride + g];
      for (int c = 0; c < kColumns; ++c) {
        std::int32_t sum = row.start;
        for (std::int64_t k = 0; k < kGroup; ++k) {
          sum += w[g].values[k / kQuad][column + c][k % kQuad] * row.values[k];
        }
        result[r * kPanel + c] += static_cast<float>(sum) * (row.scale * w[g].scales[column + c]);
      }
    }
  }
}

#else

/// Int8Tile for processors that multiply pairs of 16 bits: of four bytes of a column the even ones and the
/// odd ones, widened, make a pair each.
template <int kRows, int kColumns>
HWY_NOINLINE void multiply_int8_tile(const Int8Row* HWY_RESTRICT x, std::int64_t x_stride,
                                     const Int8Panel* HWY_RESTRICT w, std::int64_t column,
                                     std::int64_t groups, float* HWY_RESTRICT result) {
  constexpr int kVectors = kColumns / kLanes;
  const Floats d;
  const Ints ints;
  const hn::Repartition<std::int16_t, Ints> pairs;
  const hn::Repartition<std::uint16_t, Ints> unsigned_pairs;
  const std::int64_t ahead = kBytesAhead / kColumns * kPanel;
  for (std::int64_t g = 0; g < groups; ++g) {
    // On x86 a lane of `sum` is that of a column, and `rest` stays zero; on others both have halves of it.
    hn::Vec<Ints> sum[kRows][kVectors], rest[kRows][kVectors];
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[r][v] = rest[r][v] = hn::Zero(ints);
    }
    for (std::int64_t k = 0; k < kGroup / kQuad; ++k) {
      const std::uint8_t* const quads = w[g].values[k][column];
#pragma GCC unroll 4
      for (std::int64_t i = 0; i < kColumns * kQuad; i += kLineBytes) hwy::Prefetch(quads + ahead + i);
      hn::Vec<decltype(pairs)> even[kVectors], odd[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        const auto four =
            hn::BitCast(unsigned_pairs,
                        hn::LoadU(ints, reinterpret_cast<const std::int32_t*>(quads + v * kLanes * kQuad)));
        even[v] = hn::BitCast(pairs, hn::And(four, hn::Set(unsigned_pairs, 0xFF)));
        odd[v] = hn::BitCast(pairs, hn::ShiftRight<8>(four));
      }
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        std::int32_t four_values;
        std::memcpy(&four_values, x[r * x_stride + g].values + k * kQuad, sizeof four_values);
        const auto four = hn::BitCast(pairs, hn::Set(ints, four_values));
        const auto even_x = hn::ShiftRight<8>(hn::ShiftLeft<8>(four)), odd_x = hn::ShiftRight<8>(four);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          sum[r][v] = hn::ReorderWidenMulAccumulate(ints, even[v], even_x, sum[r][v], rest[r][v]);
          sum[r][v] = hn::ReorderWidenMulAccumulate(ints, odd[v], odd_x, sum[r][v], rest[r][v]);
        }
      }
    }
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const float* const scales = w[g].scales + column + v * kLanes;
      hwy::Prefetch(reinterpret_cast<const std::uint8_t*>(scales) + ahead);
      const auto scale = hn::LoadU(d, scales);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const Int8Row& row = x[r * x_stride + g];
        float* const total = result + r * kPanel + v * kLanes;
        const auto whole =
            hn::Add(hn::RearrangeToOddPlusEven(sum[r][v], rest[r][v]), hn::Set(ints, row.start));
        hn::StoreU(
            hn::MulAdd(hn::ConvertTo(d, whole), hn::Mul(hn::Set(d, row.scale), scale), hn::LoadU(d, total)),
            d, total);
      }
    }
  }
}

#endif

template <int kColumns, int... kLess>
constexpr auto int8_tiles_of_rows(std::integer_sequence<int, kLess...>) {
  return std::array<Int8Tile, sizeof...(kLess)>{multiply_int8_tile<kLess + 1, kColumns>...};
}

/// The tile of r rows is element r - 1.
template <int kColumns>
constexpr auto kInt8TileOfRows =
    int8_tiles_of_rows<kColumns>(std::make_integer_sequence<int, most_rows(kColumns)>());

HWY_INLINE Int8Tile int8_tile_of(int rows, int columns) {
  const auto row = static_cast<std::size_t>(rows - 1);
  if (columns == 64) return kInt8TileOfRows<64>[row];
  if (columns == 32) return kInt8TileOfRows<32>[row];
  return kInt8TileOfRows<16>[row];
}

/// multiply_panels of tile-inl.h for weights and rows in 8 bits: x [rows, groups].
template <typename Store>
HWY_INLINE void multiply_int8_panels(const Int8Row* x, std::int64_t rows, std::int64_t groups,
                                     const Int8Panel* w, std::int64_t first, std::int64_t last,
                                     const Store& store) {
  HWY_ALIGN float result[kManyRows * kPanel];
  const bool vnni = kAvx512 && has_int8_tile(), few = rows < kManyRows;
  TileShape shape = tile_shape(rows);
  if (vnni) {
    const std::int64_t tiles = std::max<std::int64_t>(divide_up(rows, kInt8TileRows), 1);
    shape = {few ? static_cast<int>(divide_up(rows, tiles)) : kInt8TileRows, static_cast<int>(kPanel)};
  }
  const bool one_tile = rows <= shape.rows && shape.columns == kPanel;
  const std::int64_t together = few ? rows : shape.rows, step = few && !one_tile ? 1 : groups;
  for (std::int64_t from = first * kHalfPanel, end = last * kHalfPanel, to = 0; from < end; from = to) {
    to = std::min((from / kPanel + 1) * kPanel, end);
    const Int8Panel* const panel = w + from / kPanel * groups;
    for (std::int64_t begin = 0; begin < rows; begin += together) {
      const std::int64_t last_row = std::min(begin + together, rows);
      std::fill_n(result, (last_row - begin) * kPanel, 0.0f);
      for (std::int64_t g = 0; g < groups; g += step) {
        for (std::int64_t column = from; column < to; column += shape.columns) {
          const int columns = static_cast<int>(std::min<std::int64_t>(shape.columns, to - column));
          for (std::int64_t row = begin; row < last_row; row += shape.rows) {
            const int count = static_cast<int>(std::min<std::int64_t>(shape.rows, last_row - row));
            const Int8Tile tile = vnni ? int8_tile(count, columns) : int8_tile_of(count, columns);
            tile(x + row * groups + g, groups, panel + g, column % kPanel, std::min(step, groups - g),
                 result + (row - begin) * kPanel + (column - from));
          }
        }
      }
      for (std::int64_t row = begin; row < last_row; ++row) {
        store(row, from, to - from, result + (row - begin) * kPanel);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace staircase
HWY_AFTER_NAMESPACE();

#endif  // include guard, once for each target
