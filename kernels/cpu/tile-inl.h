// The inner loop of every product on the CPU: the results of a few rows of x times a few columns of W, a
// tile, stay in registers along the depth. This file is included once for each SIMD target (see Highway's
// foreach_target.h).
//
// Why 6 × 64 with AVX-512: its 24 accumulators, 4 registers of W and one of x fit in 32 registers. Each
// loaded value is used often enough that the two multiply-add units, not the two load units, are the limit.
// With AVX2 (16 registers of half the width) 6 × 16 follows from the same arithmetic. Fewer than 4 rows get a
// wider tile with AVX2, which reads memory in larger pieces. See Goto and van de Geijn 2008, "Anatomy of
// high-performance matrix multiplication", section 4.
//
// Every element of the result is one chain of multiply-adds in the order of the depth, whatever the number of
// rows, columns or threads. So a token gets the same bits whatever else is in the batch. That holds for each
// type of weights, and for bfloat16_tile.h, which adds in its own orders.

#if defined(STAIRCASE_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STAIRCASE_TILE_INL_H_
#undef STAIRCASE_TILE_INL_H_
#else
#define STAIRCASE_TILE_INL_H_
#endif

#include <hwy/aligned_allocator.h>
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

#include "kernels/cpu/bfloat16_tile.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/half.h"

HWY_BEFORE_NAMESPACE();
namespace staircase {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, 16>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(Floats()));
constexpr bool kAvx512 = kLanes == 16;
constexpr int kTileRows = 6;
constexpr int kAccumulators = kAvx512 ? 24 : 12;

/// With more rows than this, a panel serves tile after tile. Fewer rows go down a panel together: weights
/// then arrive from memory while others are multiplied, and 16-bit weights need not be widened in advance.
/// Widening them, or multiplying narrow tiles one after another, pays off only with more rows.
template <bool kWidened>
constexpr std::int64_t kFewRows = (kAvx512 && !kWidened ? 4 : 8) * kTileRows;

/// The maximum number of rows for a tile of this width: its accumulators must fit into registers.
constexpr int most_rows(int columns) {
  return std::clamp(kAccumulators * kLanes / columns, columns == 16 ? kTileRows : 1, kTileRows);
}

/// The rows and columns of a tile. tile_shape chooses them for a product with `rows` rows; a few rows are
/// divided evenly among tiles.
struct TileShape {
  int rows, columns;
};
constexpr TileShape tile_shape(std::int64_t rows, bool few) {
  const std::int64_t tiles = std::max<std::int64_t>(divide_up(rows, kTileRows), 1);
  const int tile_rows = few ? static_cast<int>(divide_up(rows, tiles)) : kTileRows;
  for (const int columns : {64, 32}) {
    if (tile_rows <= most_rows(columns)) return {tile_rows, columns};
  }
  return {tile_rows, 16};
}

HWY_INLINE hn::Vec<Floats> load_wide(const float* values) {
  return hn::LoadU(Floats(), values);
}

/// Loads 16-bit weights, keys or values and widens them to float32: 16 bits save memory traffic, not
/// arithmetic.
template <typename Half>
HWY_INLINE hn::Vec<Floats> load_wide(const Half* values) {
  return hn::PromoteTo(Floats(), hn::LoadU(hn::Rebind<Half, Floats>(), values));
}

/// Loads keys or values in int8 as float32, without their scale.
HWY_INLINE hn::Vec<Floats> load_wide(const std::int8_t* values) {
  const hn::Rebind<std::int32_t, Floats> ints;
  return hn::ConvertTo(Floats(), hn::PromoteTo(ints, hn::LoadU(hn::Rebind<std::int8_t, Floats>(), values)));
}

/// Loads a vector of a head's features from feature i on, of the key or the value at one position. In int8
/// the scale is not applied.
template <typename T>
HWY_INLINE hn::Vec<Floats> load_features(const T* head, std::int64_t /*head_size*/, std::int64_t i) {
  return load_wide(head + i);
}
HWY_INLINE hn::Vec<Floats> load_features(const Int4Byte* head, std::int64_t head_size, std::int64_t i) {
  const hn::Rebind<std::uint32_t, Floats> ints;
  const hn::Rebind<std::uint8_t, Floats> bytes;
  const auto* const first = reinterpret_cast<const std::uint8_t*>(head);
  const std::int64_t chunk = i / (2 * kInt4CacheGroup), place = i % kInt4CacheGroup;
  const auto pair = hn::PromoteTo(ints, hn::LoadU(bytes, first + chunk * kInt4CacheGroup + place));
  const auto level =
      i / kInt4CacheGroup % 2 == 0 ? hn::And(pair, hn::Set(ints, 15)) : hn::ShiftRight<4>(pair);
  // A vector of up to 8 numbers lies in one group and needs its ends. A vector of 16 numbers needs the ends
  // of both groups.
  const auto ends_of = [&](std::int64_t group) {
    std::uint32_t ends;
    std::memcpy(&ends, first + head_size / 2 + (2 * chunk + group) * 4, sizeof ends);
    return ends;
  };
  auto ends = hn::Set(ints, ends_of(place / (kInt4CacheGroup / 2)));
  if constexpr (kAvx512) {
    ends = hn::IfThenElse(hn::FirstN(ints, kInt4CacheGroup / 2), ends, hn::Set(ints, ends_of(1)));
  }
  const auto least = hn::BitCast(Floats(), hn::ShiftLeft<16>(ends)),
             step = hn::BitCast(Floats(), hn::And(ends, hn::Set(ints, 0xFFFF0000u)));
  const auto wide = hn::ConvertTo(Floats(), hn::BitCast(hn::Rebind<std::int32_t, Floats>(), level));
  return hn::MulAdd(wide, step, least);
}

/// Whether heads of this type may have features that do not fill a vector.
template <typename T>
constexpr bool kHasRest = !std::is_same_v<T, std::int8_t> && !std::is_same_v<T, Int4Byte>;

/// How many neighbouring rows of a panel of this type are interleaved, element by element (kPair in
/// cpu_device.h).
template <typename W>
constexpr std::int64_t kInterleavedRows =
    std::is_same_v<W, hwy::bfloat16_t> || std::is_same_v<W, std::uint16_t> ? kPair : 1;

/// Loads columns from `column` on of one of the interleaved rows, the first or the second.
template <typename W>
HWY_INLINE hn::Vec<Floats> load_columns(const W* rows, std::int64_t column, std::int64_t /*row*/) {
  return load_wide(rows + column);
}

/// bfloat16 is the upper half of a float32. Of two adjacent ones, the first is shifted into that half, and
/// the second is already in it.
HWY_INLINE hn::Vec<Floats> load_columns(const hwy::bfloat16_t* rows, std::int64_t column, std::int64_t row) {
  const hn::Rebind<std::uint32_t, Floats> pairs;
  const auto pair = hn::LoadU(pairs, reinterpret_cast<const std::uint32_t*>(rows + column * kPair));
  return hn::BitCast(Floats(),
                     row == 0 ? hn::ShiftLeft<16>(pair) : hn::And(pair, hn::Set(pairs, 0xFFFF0000u)));
}

/// Rounds `count` values to the type of `out`.
HWY_INLINE void narrow(const float* values, std::int64_t count, float* out) {
  std::copy_n(values, count, out);
}
HWY_INLINE void narrow(const float* values, std::int64_t count, hwy::float16_t* out) {
  std::int64_t i = 0;
  if constexpr (kLanes >= 8) {  // a target with vectors of 8 lanes has an instruction for this
    const hn::Rebind<hwy::float16_t, Floats> halves;
    for (; i + kLanes <= count; i += kLanes) {
      hn::StoreU(hn::DemoteTo(halves, hn::LoadU(Floats(), values + i)), halves, out + i);
    }
  }
  for (; i < count; ++i) out[i] = std::bit_cast<hwy::float16_t>(float16_from_float32(values[i]));
}
HWY_INLINE void narrow(const float* values, std::int64_t count, hwy::bfloat16_t* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i].bits = bfloat16_from_float32(values[i]);
}

/// Converts one value to float32.
HWY_INLINE float widen(float value) {
  return value;
}
HWY_INLINE float widen(hwy::float16_t value) {
  return float32_from_float16(std::bit_cast<std::uint16_t>(value));
}
HWY_INLINE float widen(hwy::bfloat16_t value) {
  return float32_from_bfloat16(value.bits);
}
HWY_INLINE float widen(std::int8_t value) {
  return value;
}

/// Calls function(pointer) with `data` as a pointer to elements of type `dtype`.
template <typename Function>
HWY_INLINE void with_elements(DType dtype, void* data, const Function& function) {
  if (dtype == DType::kFloat16) {
    function(static_cast<hwy::float16_t*>(data));
  } else if (dtype == DType::kBFloat16) {
    function(static_cast<hwy::bfloat16_t*>(data));
  } else {
    function(static_cast<float*>(data));
  }
}

constexpr std::int64_t kLineBytes = 64;

/// Multiplies one tile: adds x [kRows, depth] times w [depth, kColumns], a part of a panel, to result [kRows,
/// kColumns]. Neighbouring rows are x_stride elements apart in x and kPanel in the result. TileRole::kNext
/// prefetches from `next`.
template <typename W, int kRows, int kColumns, TileRole kRole>
HWY_NOINLINE void multiply_tile(const float* HWY_RESTRICT x, std::int64_t x_stride, const W* HWY_RESTRICT w,
                                std::int64_t depth, float* HWY_RESTRICT result, const char* next) {
  constexpr int kVectors = kColumns / kLanes;
  const Floats d;
  hn::Vec<Floats> sum[kRows][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Load(d, result + r * kPanel + v * kLanes);
  }
  // One or two rows of float32 leave the processor enough time to prefetch by itself.
  constexpr bool kLookAhead =
      kRole == TileRole::kFirst || (kRole == TileRole::kAlone && (sizeof(W) < sizeof(float) || kRows > 2));
  constexpr std::int64_t kOfColumns = kPanel / kColumns, kBytes = sizeof(W);
  const std::int64_t ahead = kBytesAhead * kOfColumns / kBytes;
  constexpr std::int64_t kFarAhead = kBytesFarAhead * kOfColumns / kBytes;
  constexpr std::int64_t kElementsOfLine = kLineBytes / kBytes, kElements = kColumns * kInterleavedRows<W>;
  constexpr std::int64_t kHalf = kRole == TileRole::kSecond ? kElements / 2 : 0;
  constexpr bool kTogether = kRole == TileRole::kFirst || kRole == TileRole::kSecond;
  for (std::int64_t k = 0; k < depth; k += kInterleavedRows<W>) {
    const W* const rows = w + k * kPanel;
#pragma GCC unroll 4
    for (std::int64_t i = 0; kLookAhead && i < kElements; i += kElementsOfLine)
      __builtin_prefetch(rows + ahead + i, 0, 3);
#pragma GCC unroll 2
    for (std::int64_t i = 0; kTogether && i < kElements / 2; i += kElementsOfLine)
      __builtin_prefetch(rows + kFarAhead + kHalf + i, 0, 2);
    if (kRole == TileRole::kNext) __builtin_prefetch(next + k / kInterleavedRows<W> * kLineBytes, 0, 2);
#pragma GCC unroll 2
    for (std::int64_t row = 0; row < kInterleavedRows<W>; ++row) {
      hn::Vec<Floats> column[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) column[v] = load_columns(rows, v * kLanes, row);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const auto value = hn::Set(d, x[r * x_stride + k + row]);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(value, column[v], sum[r][v]);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) hn::Store(sum[r][v], d, result + r * kPanel + v * kLanes);
  }
}

template <typename X, typename W>
using TileFunction = void (*)(const X*, std::int64_t, const W*, std::int64_t, float*, const char*);

template <typename W, int kColumns, TileRole kRole, int... kLess>
constexpr auto tiles_of_rows(std::integer_sequence<int, kLess...>) {
  return std::array<TileFunction<float, W>, sizeof...(kLess)>{
      multiply_tile<W, kLess + 1, kColumns, kRole>...};
}

/// Element r - 1 is the tile of r rows.
template <typename W, int kColumns, TileRole kRole>
constexpr auto kTileOfRows =
    tiles_of_rows<W, kColumns, kRole>(std::make_integer_sequence<int, most_rows(kColumns)>());

template <typename W, TileRole kRole>
HWY_INLINE TileFunction<float, W> tile_for(int rows, int columns) {
  const auto row = static_cast<std::size_t>(rows - 1);
  if (columns == 64) return kTileOfRows<W, 64, kRole>[row];
  if (columns == 32) return kTileOfRows<W, 32, kRole>[row];
  return kTileOfRows<W, 16, kRole>[row];
}

/// Returns the tile for this many rows and columns. With x in bfloat16, it is a tile of bfloat16_tile.h.
template <typename X, typename W>
HWY_INLINE TileFunction<X, W> tile_of(int rows, int columns, TileRole role) {
  if constexpr (std::is_same_v<X, std::uint16_t>) {
    return bfloat16_tile(rows, columns, role);
  } else {
    if constexpr (kLanes > 4) {  // otherwise the multiply-adds are the limit
      if (role == TileRole::kFirst) return tile_for<W, TileRole::kFirst>(rows, columns);
      if (role == TileRole::kSecond) return tile_for<W, TileRole::kSecond>(rows, columns);
      if (role == TileRole::kNext) return tile_for<W, TileRole::kNext>(rows, columns);
    }
    return tile_for<W, TileRole::kAlone>(rows, columns);
  }
}

/// The role of tile number `tile`, if several tiles go down the panel together.
constexpr TileRole role_of(std::int64_t tile) {
  return tile == 0 ? TileRole::kFirst : tile == 1 ? TileRole::kSecond : TileRole::kAlone;
}

/// Returns a panel as float32 in this thread's memory, each row contiguous.
template <typename Half>
HWY_INLINE const float* widen_panel(const Half* w, std::int64_t depth) {
  thread_local hwy::AlignedFreeUniquePtr<float[]> memory;
  thread_local std::int64_t size = 0;
  if (size < depth * kPanel) {
    memory = hwy::AllocateAligned<float>(static_cast<std::size_t>(depth * kPanel));
    if (memory == nullptr) throw std::bad_alloc();
    size = depth * kPanel;
  }
  constexpr std::int64_t kInterleaved = kInterleavedRows<Half>, kHalves = kLineBytes / sizeof(Half);
  const std::int64_t ahead = kBytesAhead / std::int64_t{sizeof(Half)};
  for (std::int64_t k = 0; k < depth; ++k) {
    for (std::int64_t i = 0; i < kPanel; i += kHalves) __builtin_prefetch(w + k * kPanel + ahead + i);
    for (std::int64_t column = 0; column < kPanel; column += kLanes) {
      const auto values =
          load_columns(w + k / kInterleaved * kInterleaved * kPanel, column, k % kInterleaved);
      hn::Store(values, Floats(), memory.get() + k * kPanel + column);
    }
  }
  return memory.get();
}

/// multiply_panels (below) with the matrix instructions of bfloat16_tile.h.
template <typename Store>
HWY_INLINE void multiply_panels_as_matrices(const std::uint16_t* x, std::int64_t rows, std::int64_t x_stride,
                                            const std::uint16_t* w, std::int64_t panel_stride,
                                            std::int64_t depth, std::int64_t first, std::int64_t last,
                                            const Store& store) {
  HWY_ALIGN float result[kMatrixRows * kPanel];
  AmxBFloat16 matrices;
  for (std::int64_t from = first * kHalfPanel, end = last * kHalfPanel, to = 0; from < end; from = to) {
    to = std::min((from / kPanel + 1) * kPanel, end);
    const std::uint16_t* const columns = w + from / kPanel * panel_stride + from % kPanel * kPair;
    for (std::int64_t begin = 0; begin < rows; begin += kMatrixRows) {
      const std::int64_t count = std::min(kMatrixRows, rows - begin);
      matrices.multiply(x + begin * x_stride, x_stride, count, columns, to - from, depth, result);
      for (std::int64_t row = 0; row < count; ++row) {
        store(begin + row, from, to - from, result + row * kPanel);
      }
    }
  }
}

/// Multiplies x [rows, depth] by the halves first .. last - 1 of the panels of w. Passes on each finished
/// piece of a row: store(row, column, count, values), where `values` are the products for the columns column
/// .. column + count - 1. Neighbouring panels are panel_stride elements apart.
///
/// Many rows: a panel stays in the cache while the rows pass, 6 at a time, and early tiles prefetch the next
/// panel. A 16-bit panel is widened once, not once per tile. A few rows: all of them go down the panel
/// together. The steps are so short that later tiles find the first tile's data in the first-level cache, so
/// memory is read once, from front to back.
template <typename X, typename W, typename Store>
HWY_INLINE void multiply_panels(const X* x, std::int64_t rows, std::int64_t x_stride, const W* w,
                                std::int64_t panel_stride, std::int64_t depth, std::int64_t first,
                                std::int64_t last, const Store& store) {
  if constexpr (std::is_same_v<X, std::uint16_t>) {
    if (has_amx_bfloat16(depth)) {
      multiply_panels_as_matrices(x, rows, x_stride, w, panel_stride, depth, first, last, store);
      return;
    }
  }
  constexpr std::int64_t kStepBytes = 8192;
  constexpr std::int64_t kFew = kFewRows<!std::is_same_v<W, X>>;
  HWY_ALIGN float result[kFew * kPanel];
  const bool few = rows <= kFew;
  const TileShape shape = tile_shape(rows, few);
  const bool one_tile = rows <= shape.rows && shape.columns == kPanel;
  const std::int64_t together = few ? rows : shape.rows;
  // Multiplies the columns `from` up to `to` of this panel.
  const auto multiply_panel = [&](const auto* panel, std::int64_t from, std::int64_t to) HWY_ATTR {
    using T = std::remove_cvref_t<decltype(*panel)>;
    const std::int64_t step = few && !one_tile ? kStepBytes / kPanel / std::int64_t{sizeof(T)} : depth;
    // The tiles after the first prefetch from here until the whole next panel is in flight.
    const auto* next = reinterpret_cast<const char*>(w + (from / kPanel + 1) * panel_stride);
    const auto* const end_of_next = to < last * kHalfPanel ? next + depth * kPanel * sizeof(W) : next;
    for (std::int64_t begin = 0; begin < rows; begin += together) {
      const std::int64_t end = std::min(begin + together, rows);
      std::fill_n(result, (end - begin) * kPanel, 0.0f);
      for (std::int64_t k = 0; k < depth; k += step) {
        for (std::int64_t column = from; column < to; column += shape.columns) {
          const int columns = static_cast<int>(std::min<std::int64_t>(shape.columns, to - column));
          for (std::int64_t row = begin; row < end; row += shape.rows) {
            const int count = static_cast<int>(std::min<std::int64_t>(shape.rows, end - row));
            TileRole role = TileRole::kAlone;
            if (rows > shape.rows && few) role = role_of((row - begin) / shape.rows);
            if (!few && row > 0 && next < end_of_next) role = TileRole::kNext;
            tile_of<X, T>(count, columns, role)(
                x + row * x_stride + k, x_stride, panel + k * kPanel + column % kPanel * kInterleavedRows<T>,
                std::min(step, depth - k), result + (row - begin) * kPanel + (column - from), next);
            if (role == TileRole::kNext) next += depth / kInterleavedRows<T> * kLineBytes;
          }
        }
      }
      for (std::int64_t row = begin; row < end; ++row) {
        store(row, from, to - from, result + (row - begin) * kPanel);
      }
    }
  };
  for (std::int64_t from = first * kHalfPanel, end = last * kHalfPanel, to = 0; from < end; from = to) {
    to = std::min((from / kPanel + 1) * kPanel, end);
    const W* const panel = w + from / kPanel * panel_stride;
    if constexpr (!std::is_same_v<W, X>) {
      if (!few) {
        multiply_panel(widen_panel(panel, depth), from, to);
        continue;
      }
    }
    multiply_panel(panel, from, to);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace staircase
HWY_AFTER_NAMESPACE();

#endif  // include guard, once for each target
