// The inner loop of every product on the CPU: a tile of a few rows of x times a few panels of W stays in
// registers while the depth runs by. It is included once for each SIMD target (see Highway's
// foreach_target.h).
//
// Why 6 × 64 with AVX-512: its 24 accumulators, 4 registers of W and one of x fit in 32 registers, and each
// value loaded is used often enough that the two multiply-add units, not the two load units, are the limit.
// With AVX2 (16 registers of half the width) 6 × 16 follows from the same arithmetic. See Goto and van de
// Geijn 2008, "Anatomy of high-performance matrix multiplication", section 4.
//
// A batch of 7 to 12 rows, or a draft to verify, gets a tile that holds all of them, 8 × 48 or 12 × 32: the
// same 24 accumulators. In two tiles the multiply-adds of the second would keep the memory waiting.
//
// Every element of the result is one chain of multiply-adds in the order of the depth, whatever the number of
// rows, panels or threads. So a token's values do not depend, to the bit, on what else is in the batch. That
// holds for each type of weights, and for the tile of bfloat16_tile.h.

#if defined(STAIRCASE_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STAIRCASE_TILE_INL_H_
#undef STAIRCASE_TILE_INL_H_
#else
#define STAIRCASE_TILE_INL_H_
#endif

#include <hwy/aligned_allocator.h>
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <array>
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

using Floats = hn::CappedTag<float, kPanel>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(Floats()));
constexpr int kTileRows = 6;
constexpr int kTilePanels = kLanes == kPanel ? 4 : 1;
constexpr int kMaxTileRows = kLanes == kPanel ? 12 : kTileRows;

/// Rows and panels of the tiles that a product of `rows` rows is cut into.
struct TileShape {
  int rows, panels;
};
constexpr TileShape tile_shape(std::int64_t rows) {
  if (kLanes == kPanel && rows > kTileRows) {
    if (rows <= 8 || (rows > 12 && rows <= 16)) return {8, 3};
    if (rows <= 12) return {12, 2};
  }
  return {kTileRows, kTilePanels};
}

HWY_INLINE hn::Vec<Floats> load_wide(const float* values) {
  return hn::LoadU(Floats(), values);
}

/// 16-bit weights, keys and values become float32 on their way into the register: their point is to be half
/// as many bytes.
template <typename Half>
HWY_INLINE hn::Vec<Floats> load_wide(const Half* values) {
  return hn::PromoteTo(Floats(), hn::LoadU(hn::Rebind<Half, Floats>(), values));
}

/// Stores `count` values in another type, rounded.
HWY_INLINE void narrow(const float* values, std::int64_t count, float* out) {
  std::copy_n(values, count, out);
}
HWY_INLINE void narrow(const float* values, std::int64_t count, hwy::float16_t* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i].bits = float16_from_float32(values[i]);
}
HWY_INLINE void narrow(const float* values, std::int64_t count, hwy::bfloat16_t* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i].bits = bfloat16_from_float32(values[i]);
}

/// The other way, one value at a time.
HWY_INLINE float widen(float value) {
  return value;
}
HWY_INLINE float widen(hwy::float16_t value) {
  return float32_from_float16(value.bits);
}
HWY_INLINE float widen(hwy::bfloat16_t value) {
  return float32_from_bfloat16(value.bits);
}

/// Calls function(pointer) with `data` as a pointer to elements of that type.
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

/// One tile: [kRows, depth] times [depth, kPanels · 16], written to result[kRows][kPanels · 16].
/// Neighbouring rows of x lie x_stride elements apart, neighbouring panels of w panel_stride. The panels
/// behind those of this tile are taken to be next.
template <typename W, int kRows, int kPanels>
HWY_NOINLINE void multiply_tile(const float* HWY_RESTRICT x, std::int64_t x_stride, const W* HWY_RESTRICT w,
                                std::int64_t panel_stride, std::int64_t depth, float* HWY_RESTRICT result) {
  constexpr int kVectors = kPanel / kLanes * kPanels;
  const Floats d;
  hn::Vec<Floats> sum[kRows][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  // One or two rows of float32 leave the processor time enough to look ahead itself.
  constexpr bool kLookAhead = sizeof(W) < sizeof(float) || kRows > 2;
  constexpr std::int64_t kRowsOfLine = kLineBytes / std::int64_t{kPanel * sizeof(W)};
  const W* ahead = w + kRowsAhead * kPanel;
  for (std::int64_t k = 0; k < depth; ++k) {
    if (kLookAhead && k % kRowsOfLine == 0) {
      if (k + kRowsAhead == depth) ahead += kPanels * panel_stride - depth * kPanel;
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) hwy::Prefetch(ahead + p * panel_stride + k * kPanel);
    }
    hn::Vec<Floats> column[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const int lane = v * kLanes;
      column[v] = load_wide(w + (lane / kPanel) * panel_stride + k * kPanel + lane % kPanel);
    }
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const auto value = hn::Set(d, x[r * x_stride + k]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(value, column[v], sum[r][v]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      hn::Store(sum[r][v], d, result + r * kPanels * kPanel + v * kLanes);
    }
  }
}

template <typename X, typename W>
using TileFunction = void (*)(const X*, std::int64_t, const W*, std::int64_t, std::int64_t, float*);

template <typename W, int kPanels, int... kLess>
constexpr auto tiles_of_rows(std::integer_sequence<int, kLess...>) {
  return std::array<TileFunction<float, W>, sizeof...(kLess)>{multiply_tile<W, kLess + 1, kPanels>...};
}

/// The tile of r rows is element r - 1.
template <typename W, int kPanels>
constexpr auto kTileOfRows = tiles_of_rows<W, kPanels>(
    std::make_integer_sequence<int, std::min(kMaxTileRows, kTileRows* kTilePanels / kPanels)>());

/// The tile for that many rows and panels: with x in bfloat16 that of bfloat16_tile.h.
template <typename X, typename W>
HWY_INLINE TileFunction<X, W> tile_of(int rows, int panels) {
  if constexpr (std::is_same_v<X, std::uint16_t>) {
    return bfloat16_tile(rows, panels);
  } else {
    const auto row = static_cast<std::size_t>(rows - 1);
    if constexpr (kTilePanels == 4) {
      if (panels == 4) return kTileOfRows<W, 4>[row];
      if (panels == 3) return kTileOfRows<W, 3>[row];
      if (panels == 2) return kTileOfRows<W, 2>[row];
    }
    return kTileOfRows<W, 1>[row];
  }
}

/// From this number of rows on it pays to widen 16-bit panels once, instead of once for each tile.
constexpr std::int64_t kManyRows = 4 * kTileRows;

/// The panels of one tile as float32, in memory of this thread.
template <typename Half>
HWY_INLINE const float* widen_panels(const Half* w, std::int64_t count) {
  thread_local hwy::AlignedFreeUniquePtr<float[]> memory;
  thread_local std::int64_t size = 0;
  if (size < count) {
    memory = hwy::AllocateAligned<float>(static_cast<std::size_t>(count));
    if (memory == nullptr) throw std::bad_alloc();
    size = count;
  }
  for (std::int64_t i = 0; i < count; i += kLanes) hn::Store(load_wide(w + i), Floats(), memory.get() + i);
  return memory.get();
}

/// Multiplies x [rows, depth] by the panels first .. last - 1 of w and hands over each finished piece of a
/// row: store(row, column, count, values), `values` being the products for the columns column .. column +
/// count - 1. The panels of a tile stay in the cache while all rows pass.
template <typename X, typename W, typename Store>
HWY_INLINE void multiply_panels(const X* x, std::int64_t rows, std::int64_t x_stride, const W* w,
                                std::int64_t panel_stride, std::int64_t depth, std::int64_t first,
                                std::int64_t last, const Store& store) {
  HWY_ALIGN float result[kMaxTileRows * kTilePanels * kPanel];
  const TileShape shape = tile_shape(rows);
  int panels = shape.panels;
  for (std::int64_t panel = first; panel < last; panel += panels) {
    panels = static_cast<int>(std::min<std::int64_t>(panels, last - panel));
    const auto multiply_rows = [&](const auto* tile_w) HWY_ATTR {
      using T = std::remove_cvref_t<decltype(*tile_w)>;
      for (std::int64_t row = 0; row < rows; row += shape.rows) {
        const int count = static_cast<int>(std::min<std::int64_t>(shape.rows, rows - row));
        tile_of<X, T>(count, panels)(x + row * x_stride, x_stride, tile_w, panel_stride, depth, result);
        for (int r = 0; r < count; ++r) {
          store(row + r, panel * kPanel, panels * kPanel, result + r * panels * kPanel);
        }
      }
    };
    const W* const tile_w = w + panel * panel_stride;
    if constexpr (!std::is_same_v<W, X>) {
      if (rows >= kManyRows) {
        multiply_rows(widen_panels(tile_w, panels * panel_stride));
        continue;
      }
    }
    multiply_rows(tile_w);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace staircase
HWY_AFTER_NAMESPACE();

#endif  // include guard, once for each target
