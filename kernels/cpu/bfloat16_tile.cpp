// VDPBF16PS multiplies two neighbouring values of a row of x by two of a column of w. It adds both products
// to the sum of that row and column, for 16 columns at once. That is why panels of bfloat16 interleave two
// neighbours along the depth (kPair in cpu_device.h).
//
// The tile has the size that tile-inl.h derives. As in that file, every element is one chain in the order of
// the depth, whatever else is computed in the same pass.
//
// TDPBF16PS does the same for 16 rows of x, 16 columns of w and a depth of 32, in registers of 1 KB that
// Intel calls tiles. It adds in another order than VDPBF16PS. On processors that have it, even a single row
// is added in its order.
//
// Highway 1.0 has neither these instructions nor a target with them, so this file uses intrinsics.
#include "kernels/cpu/bfloat16_tile.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <array>
#include <cstring>
#include <utility>

#include "kernels/cpu/amx_registers.h"
#include "kernels/cpu/amx_shapes.h"
#include "kernels/cpu/bfloat16_target.h"
#include "kernels/cpu/cpu_device.h"

namespace staircase {
namespace {

template <int kRows, int kColumns, TileRole kRole>
STAIRCASE_TARGET void multiply_tile(const std::uint16_t* __restrict x, std::int64_t x_stride,
                                    const std::uint16_t* __restrict w, std::int64_t depth,
                                    float* __restrict result, const char* next) {
  constexpr int kVectors = kColumns / 16;
  constexpr std::int64_t kOfColumns = kPanel / kColumns, kBytes = sizeof(std::uint16_t);
  const std::int64_t ahead = kBytesAhead * kOfColumns / kBytes;
  constexpr std::int64_t kFarAhead = kBytesFarAhead * kOfColumns / kBytes;
  constexpr bool kAsksNear = kRole != TileRole::kSecond && kRole != TileRole::kNext;
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_loadu_ps(result + r * kPanel + v * 16);
  }
  for (std::int64_t k = 0; k < depth; k += kPair) {
    if (kRole == TileRole::kNext) _mm_prefetch(next + k / kPair * 64, _MM_HINT_T1);
    __m512i columns[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const std::uint16_t* const pairs = w + k * kPanel + v * 16 * kPair;
      const bool first_half = v < kVectors / 2;
      if (kAsksNear) _mm_prefetch(pairs + ahead, _MM_HINT_T0);
      if (kRole == (first_half ? TileRole::kFirst : TileRole::kSecond)) {
        _mm_prefetch(pairs + kFarAhead, _MM_HINT_T1);
      }
      columns[v] = _mm512_loadu_si512(pairs);
    }
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      std::int32_t two_values;
      std::memcpy(&two_values, x + r * x_stride + k, sizeof two_values);
      const __m512i value = _mm512_set1_epi32(two_values);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = _mm512_dpbf16_ps(sum[r][v], (__m512bh)value, (__m512bh)columns[v]);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(result + r * kPanel + v * 16, sum[r][v]);
  }
}

/// Element r - 1 is the tile of r rows.
template <int kColumns, TileRole kRole, int... kLess>
constexpr auto tiles_of_rows(std::integer_sequence<int, kLess...>) {
  return std::array<BFloat16Tile, sizeof...(kLess)>{multiply_tile<kLess + 1, kColumns, kRole>...};
}
template <int kColumns, TileRole kRole>
constexpr auto kTileOfRows = tiles_of_rows<kColumns, kRole>(std::make_integer_sequence<int, 6>());

}  // namespace

bool has_bfloat16_tile() {
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bf16");
}

BFloat16Tile bfloat16_tile(int rows, int columns, TileRole role) {
  const auto of_role = [&]<TileRole kRole>() {
    const auto row = static_cast<std::size_t>(rows - 1);
    return columns == 64 ? kTileOfRows<64, kRole>[row] : kTileOfRows<32, kRole>[row];
  };
  if (role == TileRole::kFirst) return of_role.operator()<TileRole::kFirst>();
  if (role == TileRole::kSecond) return of_role.operator()<TileRole::kSecond>();
  if (role == TileRole::kNext) return of_role.operator()<TileRole::kNext>();
  return of_role.operator()<TileRole::kAlone>();
}

// ── AMX ──

namespace {

constexpr std::int64_t kDepth = 32;  // the depth of the tiles of x and w

/// kBytesAhead for these tiles, in elements. They read faster than multiply_tile, and 2 KB is best.
constexpr std::int64_t kAheadOfTiles = 1024;

/// kBytesFarAheadOfRow in elements. Prefetching this far, one thread reads a fifth faster.
constexpr std::int64_t kFarAheadOfRow = kBytesFarAheadOfRow / 2;

/// Configures the tiles for 16 rows of x and up to 16 columns: tile 0 holds the sum, 4 is loaded from x and 6
/// from w.
STAIRCASE_AMX_TARGET void shape_narrow_tiles(std::int64_t columns) {
  TileShapes shapes;
  for (const int t : {0, 4, 6}) {
    shapes.row_bytes[t] = static_cast<std::uint16_t>(t == 4 ? 64 : columns * 4);
    shapes.rows[t] = kTile;
  }
  load_amx_shapes(&shapes);
}

constexpr std::int64_t kRowBytes = kPanel * kPair * 2;  // bytes from one pair of rows of a panel to the next

/// Multiplies up to 16 rows by 32 or 64 columns, or up to 32 rows by 32 columns.
template <int kRows, int kColumns>
STAIRCASE_AMX_TARGET void multiply_tiles(const std::uint16_t* x, std::int64_t x_stride,
                                         const std::uint16_t* w, std::int64_t depth, float* result,
                                         std::int64_t result_stride) {
  constexpr bool kFourSums = kRows > kTile || kColumns > 2 * kTile;
  constexpr std::int64_t kNextColumns = kTile * kPair;
  const std::int64_t x_bytes = x_stride * 2, sum_bytes = result_stride * 4;
  float* const more = result + (kRows > kTile ? kTile * result_stride : 2 * kTile);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (std::int64_t k = 0; k < depth; k += kDepth) {
    const std::uint16_t* const columns = w + k * kPanel;
    if constexpr (kRows == kTile) {
      for (std::int64_t i = 0; i < kDepth * kPanel; i += 32) {
        _mm_prefetch(columns + kAheadOfTiles + i, _MM_HINT_T0);
      }
    } else {  // the panel is in the second-level cache: prefetch the next step of these columns
      for (std::int64_t i = kDepth; i < 2 * kDepth; i += kPair) {
        _mm_prefetch(columns + i * kPanel, _MM_HINT_T0);
        _mm_prefetch(columns + i * kPanel + kNextColumns, _MM_HINT_T0);
      }
    }
    _tile_loadd(4, x + k, x_bytes);
    _tile_loadd(6, columns, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, columns + kNextColumns, kRowBytes);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kRows > kTile) {
      _tile_loadd(5, x + kTile * x_stride + k, x_bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    } else if constexpr (kColumns > 2 * kTile) {
      _tile_loadd(6, columns + 2 * kNextColumns, kRowBytes);
      _tile_dpbf16ps(2, 4, 6);
      _tile_loadd(7, columns + 3 * kNextColumns, kRowBytes);
      _tile_dpbf16ps(3, 4, 7);
    }
  }
  _tile_stored(0, result, sum_bytes);
  _tile_stored(1, result + kTile, sum_bytes);
  if constexpr (kFourSums) {
    _tile_stored(2, more, sum_bytes);
    _tile_stored(3, more + kTile, sum_bytes);
  }
}

/// Multiplies one row by 32 or 64 columns. Tiles would take almost as long as for nine rows, so this function
/// computes the same bits as TDPBF16PS with vectors. For each 32 of the depth, it sums the even and the odd
/// products separately, then adds both to the sum.
template <int kColumns>
STAIRCASE_TARGET void multiply_row(const std::uint16_t* x, const std::uint16_t* w, std::int64_t depth,
                                   float* result) {
  constexpr int kVectors = kColumns / 16;
  __m512 sum[kVectors];
  for (__m512& s : sum) s = _mm512_setzero_ps();
  for (std::int64_t first = 0; first < depth; first += kDepth) {
    __m512 even[kVectors], odd[kVectors];
    for (__m512& s : even) s = _mm512_setzero_ps();
    for (__m512& s : odd) s = _mm512_setzero_ps();
    for (std::int64_t k = first; k < first + kDepth; k += kPair) {
      const __m512i even_x = _mm512_set1_epi32(x[k]), odd_x = _mm512_set1_epi32(x[k + 1] << 16);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const std::uint16_t* const pairs = w + k * kPanel + v * 16 * kPair;
        _mm_prefetch(pairs + kAheadOfTiles, _MM_HINT_T0);
        _mm_prefetch(pairs + kFarAheadOfRow, _MM_HINT_T1);
        const auto columns = (__m512bh)_mm512_loadu_si512(pairs);
        even[v] = _mm512_dpbf16_ps(even[v], (__m512bh)even_x, columns);
        odd[v] = _mm512_dpbf16_ps(odd[v], (__m512bh)odd_x, columns);
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[v] = _mm512_add_ps(sum[v], _mm512_add_ps(even[v], odd[v]));
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(result + v * 16, sum[v]);
}

}  // namespace

bool has_amx_bfloat16(std::int64_t depth) {
  static const bool has = has_amx();
  return has && depth % kDepth == 0;
}

AmxBFloat16::~AmxBFloat16() {
  if (shape_ != 0) release_tiles();
}

void AmxBFloat16::multiply(const std::uint16_t* x, std::int64_t x_stride, std::int64_t rows,
                           const std::uint16_t* w, std::int64_t columns, std::int64_t depth, float* result,
                           std::int64_t result_stride) {
  const bool is_whole = columns == kPanel;
  if (rows == 1) {
    (is_whole ? multiply_row<64> : multiply_row<32>)(x, w, depth, result);
    return;
  }
  if (rows != shape_) {
    shape_tiles(rows);
    shape_ = rows;
  }
  compiler_barrier();
  if (rows > kTile) {
    constexpr std::int64_t kHalf = 2 * kTile;
    multiply_tiles<32, 32>(x, x_stride, w, depth, result, result_stride);
    if (is_whole)
      multiply_tiles<32, 32>(x, x_stride, w + kHalf * kPair, depth, result + kHalf, result_stride);
  } else {
    (is_whole ? multiply_tiles<16, 64> : multiply_tiles<16, 32>)(x, x_stride, w, depth, result,
                                                                 result_stride);
  }
  compiler_barrier();
}

STAIRCASE_AMX_TARGET void AmxBFloat16::multiply_narrow(const std::uint16_t* x, std::int64_t x_stride,
                                                       const std::uint16_t* w, std::int64_t columns,
                                                       std::int64_t depth, float* result) {
  if (shape_ != -columns) {
    shape_narrow_tiles(columns);
    shape_ = -columns;
  }
  compiler_barrier();
  _tile_zero(0);
  for (std::int64_t k = 0; k < depth; k += kDepth) {
    _tile_loadd(4, x + k, x_stride * 2);
    _tile_loadd(6, w + k * columns, columns * 4);
    _tile_dpbf16ps(0, 4, 6);
  }
  _tile_stored(0, result, columns * 4);
  compiler_barrier();
}

}  // namespace staircase

#else  // another architecture

namespace staircase {

bool has_bfloat16_tile() {
  return false;
}

BFloat16Tile bfloat16_tile(int, int, TileRole) {
  return nullptr;
}

bool has_amx_bfloat16(std::int64_t) {
  return false;
}

AmxBFloat16::~AmxBFloat16() = default;

void AmxBFloat16::multiply(const std::uint16_t*, std::int64_t, std::int64_t, const std::uint16_t*,
                           std::int64_t, std::int64_t, float*, std::int64_t) {}
void AmxBFloat16::multiply_narrow(const std::uint16_t*, std::int64_t, const std::uint16_t*, std::int64_t,
                                  std::int64_t, float*) {}

}  // namespace staircase

#endif
