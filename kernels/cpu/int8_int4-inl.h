// Products of weights in 8 or 4 bits with rows of x in 8 bits (int8_int4_tile.h, quantize-inl.h). The tiles
// here are for processors without VPDPBUSD and TDPBSUD; the tiles that use these are in int8_int4_tile.cpp.
// This file is included once for each SIMD target (see Highway's foreach_target.h).
#if defined(STAIRCASE_INT8_INT4_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STAIRCASE_INT8_INT4_INL_H_
#undef STAIRCASE_INT8_INT4_INL_H_
#else
#define STAIRCASE_INT8_INT4_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/int8_int4_tile.h"
#include "kernels/cpu/quantize-inl.h"
#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace staircase {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

/// Int8Tile, computed one number at a time.
template <typename Panel, int kRows, int kColumns>
void multiply_int8_tile(const typename Panel::Row* x, std::int64_t x_stride, const Panel* w,
                        std::int64_t column, std::int64_t groups, float* result, const char*) {
  for (std::int64_t g = 0; g < groups; ++g) {
    for (int r = 0; r < kRows; ++r) {
      const typename Panel::Row& row = x[r * x_stride + g];
      for (int c = 0; c < kColumns; ++c) {
        std::int32_t sum = 0;
        for (std::int64_t k = 0; k < Panel::kInputs; ++k) {
          sum += whole_of(w + g, k, column + c) * row.values[k];
        }
        result[r * kPanel + c] += static_cast<float>(sum) * (row.scale * scale_of(w[g], column + c));
      }
    }
  }
}

#else

/// Int8Tile for processors that multiply pairs of 16-bit numbers. Of four bytes of a column, the two even
/// ones are widened to one pair, and the two odd ones to another.
template <typename Panel, int kRows, int kColumns>
HWY_NOINLINE void multiply_int8_tile(const typename Panel::Row* HWY_RESTRICT x, std::int64_t x_stride,
                                     const Panel* HWY_RESTRICT w, std::int64_t column, std::int64_t groups,
                                     float* HWY_RESTRICT result, const char*) {
  constexpr std::int64_t kInputs = Panel::kInputs, kInByte = Panel::kInByte;
  constexpr int kVectors = kColumns / kLanes;
  const Floats d;
  const Ints ints;
  const hn::Repartition<std::int16_t, Ints> pairs;
  const hn::Repartition<std::uint16_t, Ints> unsigned_pairs;
  const auto mask = hn::Set(unsigned_pairs, (1 << Panel::kBits) - 1);
  const std::int64_t ahead = kBytesAhead / kColumns * kPanel;
  for (std::int64_t g = 0; g < groups; ++g) {
    // On x86, a lane of `sum` holds its column's whole sum and `rest` stays zero. On other processors each
    // holds a part.
    hn::Vec<Ints> sum[kRows][kVectors], rest[kRows][kVectors];
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[r][v] = rest[r][v] = hn::Zero(ints);
    }
    for (std::int64_t k = 0; k < kInputs / kQuad; k += kInByte) {
      const std::uint8_t* const quads = w[g].values[k / kInByte][column];
#pragma GCC unroll 4
      for (std::int64_t i = 0; i < kColumns * kQuad; i += kLineBytes) hwy::Prefetch(quads + ahead + i);
#pragma GCC unroll 2
      for (int part = 0; part < kInByte; ++part) {
        hn::Vec<decltype(pairs)> even[kVectors], odd[kVectors];
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          auto four =
              hn::BitCast(unsigned_pairs,
                          hn::LoadU(ints, reinterpret_cast<const std::int32_t*>(quads + v * kLanes * kQuad)));
          if (part == 1) four = hn::ShiftRight<4>(four);
          even[v] = hn::BitCast(pairs, hn::And(four, mask));
          // In the last part, no bits are above the odd number.
          const auto upper = hn::ShiftRight<8>(four);
          odd[v] = hn::BitCast(pairs, part + 1 == kInByte ? upper : hn::And(upper, mask));
        }
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          std::int32_t four_values;
          std::memcpy(&four_values, x[r * x_stride + g].values + (k + part) * kQuad, sizeof four_values);
          const auto four = hn::BitCast(pairs, hn::Set(ints, four_values));
          const auto even_x = hn::ShiftRight<8>(hn::ShiftLeft<8>(four)), odd_x = hn::ShiftRight<8>(four);
#pragma GCC unroll 16
          for (int v = 0; v < kVectors; ++v) {
            sum[r][v] = hn::ReorderWidenMulAccumulate(ints, even[v], even_x, sum[r][v], rest[r][v]);
            sum[r][v] = hn::ReorderWidenMulAccumulate(ints, odd[v], odd_x, sum[r][v], rest[r][v]);
          }
        }
      }
    }
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const auto* const scales = w[g].scales + column + v * kLanes;
      hwy::Prefetch(reinterpret_cast<const std::uint8_t*>(scales) + ahead);
      const auto scale = load_scales(scales);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const typename Panel::Row& row = x[r * x_stride + g];
        const auto added = hn::Set(ints, static_cast<std::int32_t>(Panel::kAdded) * row.sum);
        float* const total = result + r * kPanel + v * kLanes;
        const auto whole = hn::Sub(hn::RearrangeToOddPlusEven(sum[r][v], rest[r][v]), added);
        hn::StoreU(
            hn::MulAdd(hn::ConvertTo(d, whole), hn::Mul(hn::Set(d, row.scale), scale), hn::LoadU(d, total)),
            d, total);
      }
    }
  }
}

#endif

template <typename Panel, int kColumns, int... kLess>
constexpr auto int8_tiles_of_rows(std::integer_sequence<int, kLess...>) {
  return std::array<Int8Tile<Panel>, sizeof...(kLess)>{multiply_int8_tile<Panel, kLess + 1, kColumns>...};
}

/// Element r - 1 is the tile of r rows.
template <typename Panel, int kColumns>
constexpr auto kInt8TileOfRows =
    int8_tiles_of_rows<Panel, kColumns>(std::make_integer_sequence<int, most_rows(kColumns)>());

template <typename Panel>
HWY_INLINE Int8Tile<Panel> int8_tile_of(int rows, int columns) {
  const auto row = static_cast<std::size_t>(rows - 1);
  if (columns == 64) return kInt8TileOfRows<Panel, 64>[row];
  if (columns == 32) return kInt8TileOfRows<Panel, 32>[row];
  return kInt8TileOfRows<Panel, 16>[row];
}

/// multiply_int8_panels (below) with the matrix instructions of int8_int4_tile.h.
template <typename Store>
HWY_INLINE void multiply_int8_panels_as_matrices(const Int8Panel::Row* x, std::int64_t rows,
                                                 std::int64_t groups, const Int8Panel* w, std::int64_t first,
                                                 std::int64_t last, const Store& store) {
  HWY_ALIGN float result[kInt8MatrixRows * kPanel];
  AmxInt8 matrices;
  for (std::int64_t from = first * kHalfPanel, end = last * kHalfPanel, to = 0; from < end; from = to) {
    to = std::min((from / kPanel + 1) * kPanel, end);
    const Int8Panel* const panel = w + from / kPanel * groups;
    for (std::int64_t begin = 0; begin < rows; begin += kInt8MatrixRows) {
      const std::int64_t count = std::min(kInt8MatrixRows, rows - begin);
      std::fill_n(result, count * kPanel, 0.0f);
      matrices.multiply(x + begin * groups, groups, count, panel, from % kPanel, to - from, groups, result);
      for (std::int64_t row = 0; row < count; ++row) {
        store(begin + row, from, to - from, result + row * kPanel);
      }
    }
  }
}

/// multiply_panels of tile-inl.h for rows in 8 bits and weights in 8 or 4 bits. x [rows, groups].
template <typename Panel, typename Store>
HWY_INLINE void multiply_int8_panels(const typename Panel::Row* x, std::int64_t rows, std::int64_t groups,
                                     const Panel* w, std::int64_t first, std::int64_t last,
                                     const Store& store) {
  if constexpr (kAvx512 && std::is_same_v<Panel, Int8Panel>) {
    if (rows >= kLeastInt8MatrixRows && has_amx_int8()) {
      multiply_int8_panels_as_matrices(x, rows, groups, w, first, last, store);
      return;
    }
  }
  constexpr std::int64_t kFew = 10 * kTileRows - 1;  // up to this many rows go down a panel together
  HWY_ALIGN float result[kFew * kPanel];
  const bool vnni = kAvx512 && has_int8_tile(), few = rows <= kFew;
  TileShape shape = tile_shape(rows, few);
  if (vnni) {
    const std::int64_t tiles = std::max<std::int64_t>(divide_up(rows, kInt8TileRows), 1);
    shape = {few ? static_cast<int>(divide_up(rows, tiles)) : kInt8TileRows, static_cast<int>(kPanel)};
  }
  const bool one_tile = rows <= shape.rows && shape.columns == kPanel;
  const std::int64_t together = few ? rows : shape.rows, step = few && !one_tile ? 1 : groups;
  for (std::int64_t from = first * kHalfPanel, end = last * kHalfPanel, to = 0; from < end; from = to) {
    to = std::min((from / kPanel + 1) * kPanel, end);
    const Panel* const panel = w + from / kPanel * groups;
    // The tiles after the first prefetch from here until the whole next panel is in flight.
    const auto* next = reinterpret_cast<const char*>(panel + groups);
    const auto* const end_of_next = to < last * kHalfPanel ? next + groups * sizeof(Panel) : next;
    for (std::int64_t begin = 0; begin < rows; begin += together) {
      const std::int64_t last_row = std::min(begin + together, rows);
      std::fill_n(result, (last_row - begin) * kPanel, 0.0f);
      for (std::int64_t g = 0; g < groups; g += step) {
        for (std::int64_t column = from; column < to; column += shape.columns) {
          const int columns = static_cast<int>(std::min<std::int64_t>(shape.columns, to - column));
          for (std::int64_t row = begin; row < last_row; row += shape.rows) {
            const int count = static_cast<int>(std::min<std::int64_t>(shape.rows, last_row - row));
            TileRole role = TileRole::kAlone;
            if (!few && row > 0 && next < end_of_next) role = TileRole::kNext;
            // In 4 bits the multiply-adds are the limit, and prefetching another line costs time.
            if (few && row == shape.rows && Panel::kInByte == 1) role = TileRole::kSecond;
            const Int8Tile<Panel> tile =
                vnni ? int8_tile<Panel>(count, columns, role) : int8_tile_of<Panel>(count, columns);
            tile(x + row * groups + g, groups, panel + g, column % kPanel, std::min(step, groups - g),
                 result + (row - begin) * kPanel + (column - from), next);
            if (role == TileRole::kNext)
              next += groups * Panel::kInputs / kQuad / Panel::kInByte * kLineBytes;
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
