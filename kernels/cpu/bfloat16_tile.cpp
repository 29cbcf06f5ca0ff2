// VDPBF16PS takes two neighbouring values of a row of x and two of a column of w, and adds both products to
// the sum of that row and column, for 16 columns at once. So two rows of w are woven into each other, 32
// columns at a time, which puts the two values of each column side by side. (Panels stored in that order
// would need no weaving; it costs some 2 % of a prefill, and one order of panels for all types is worth
// more.)
//
// The size of the tile follows from the same arithmetic as in tile-inl.h. As there, every element is one
// chain in the order of the depth, whatever else is computed beside it.
//
// TDPBF16PS does as much for 16 rows of x, 16 columns of w and a depth of 32, which lie in registers of 1 KB,
// there called tiles. Beside it weaving is no longer cheap, so for many rows a panel is woven once. It adds
// in another order than VDPBF16PS: where it is used, a single row is multiplied by it as well.
//
// Highway 1.0 knows neither of the instructions nor a target that has them, so this file calls them by their
// names.
#include "kernels/cpu/bfloat16_tile.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "kernels/cpu/cpu_device.h"

namespace staircase {
namespace {

#define STAIRCASE_TARGET __attribute__((target("avx512bw,avx512bf16")))

// Weaving works on each quarter of a register by itself. So of 32 columns the first of two woven registers
// holds the quarters 0, 2, 4 and 6, and the second one the others.

/// Quarters of a, the first two of the result, and of b, the last two. (GCC 12 warns of its own
/// _mm512_shuffle_f32x4 without a mask.)
template <int kQuarters>
STAIRCASE_TARGET inline __m512 quarters(__m512 a, __m512 b) {
  return _mm512_maskz_shuffle_f32x4(0xffff, a, b, kQuarters);
}

/// Two registers with 16 columns each, in order, become sums of woven columns.
STAIRCASE_TARGET inline void to_woven(__m512& a, __m512& b) {
  const __m512 even = quarters<_MM_SHUFFLE(2, 0, 2, 0)>(a, b);
  b = quarters<_MM_SHUFFLE(3, 1, 3, 1)>(a, b);
  a = even;
}

/// And back.
STAIRCASE_TARGET inline void from_woven(__m512& a, __m512& b) {
  const __m512 low = quarters<_MM_SHUFFLE(1, 0, 1, 0)>(a, b);
  const __m512 high = quarters<_MM_SHUFFLE(3, 2, 3, 2)>(a, b);
  a = quarters<_MM_SHUFFLE(3, 1, 2, 0)>(low, low);
  b = quarters<_MM_SHUFFLE(3, 1, 2, 0)>(high, high);
}

template <int kRows, int kColumns>
STAIRCASE_TARGET void multiply_tile(const std::uint16_t* __restrict x, std::int64_t x_stride,
                                    const std::uint16_t* __restrict w, std::int64_t depth,
                                    float* __restrict result) {
  constexpr int kVectors = kColumns / 16;
  constexpr std::int64_t kAhead = kBytesAhead / kColumns * kPanel / std::int64_t{sizeof(std::uint16_t)};
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_loadu_ps(result + r * kPanel + v * 16);
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v += 2) to_woven(sum[r][v], sum[r][v + 1]);
  }
  for (std::int64_t k = 0; k < depth; k += 2) {
    __m512i columns[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v += 2) {
      const std::uint16_t *const row = w + k * kPanel + v * 16, *const row_below = row + kPanel;
      _mm_prefetch(row + kAhead, _MM_HINT_T0);
      _mm_prefetch(row_below + kAhead, _MM_HINT_T0);
      const __m512i a = _mm512_loadu_si512(row), b = _mm512_loadu_si512(row_below);
      columns[v] = _mm512_unpacklo_epi16(a, b);
      columns[v + 1] = _mm512_unpackhi_epi16(a, b);
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
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v += 2) from_woven(sum[r][v], sum[r][v + 1]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(result + r * kPanel + v * 16, sum[r][v]);
  }
}

/// The tile of r rows is element r - 1.
template <int kColumns, int... kLess>
constexpr auto tiles_of_rows(std::integer_sequence<int, kLess...>) {
  return std::array<BFloat16Tile, sizeof...(kLess)>{multiply_tile<kLess + 1, kColumns>...};
}
template <int kColumns>
constexpr auto kTileOfRows = tiles_of_rows<kColumns>(std::make_integer_sequence<int, 6>());

}  // namespace

bool has_bfloat16_tile() {
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512bf16");
}

BFloat16Tile bfloat16_tile(int rows, int columns) {
  const auto row = static_cast<std::size_t>(rows - 1);
  return columns == 64 ? kTileOfRows<64>[row] : kTileOfRows<32>[row];
}

// ── Matrices ──

namespace {

#define STAIRCASE_AMX_TARGET __attribute__((target("avx512bw,amx-tile,amx-bf16")))

constexpr std::int64_t kDepth = 32;                   // of a tile of x or w
constexpr std::int64_t kTile = 512, kRowOfTile = 32;  // elements
constexpr std::int64_t kSums = 16;                    // columns of a tile of sums

/// Linux gives a process these registers only when it asks: they make every switch between threads longer.
bool is_granted_tiles() {
#ifdef __linux__
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool has_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBFloat16 = 1u << 22, kTiles = 1u << 24;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kBFloat16) != 0 && (d & kTiles) != 0 &&
         __builtin_cpu_supports("avx512bw") && is_granted_tiles();
}

/// What LDTILECFG reads: how many rows of how many bytes each tile has.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

/// Memory is what it seems to be, for the instructions on tiles: the compiler does not see what they read
/// and write.
inline void settle_memory() {
  asm volatile("" ::: "memory");
}

// Tiles 0 to 3 are sums, 4 and 5 come from x, 6 and 7 from w.

/// `low` rows in the tiles of the first 16 rows of x, `high` in those of the others.
STAIRCASE_AMX_TARGET void shape_tiles(std::int64_t low, std::int64_t high) {
  TileShapes shapes;
  const std::int64_t rows[] = {low, low, high, high, low, high, 16, 16};
  for (int t = 0; t < 8; ++t) {
    shapes.row_bytes[t] = 64;
    shapes.rows[t] = static_cast<std::uint8_t>(rows[t]);
  }
  asm volatile("ldtilecfg %0" ::"m"(shapes));
}

/// kDepth rows of a panel as four tiles: tiles 2 h and 2 h + 1 are the woven columns of its half h.
STAIRCASE_AMX_TARGET inline void weave(const std::uint16_t* w, std::uint16_t* tiles) {
  for (std::int64_t row = 0; row < kDepth / 2; ++row, w += 2 * kPanel) {
    for (std::int64_t half = 0; half < 2; ++half) {
      const __m512i a = _mm512_loadu_si512(w + half * 32), b = _mm512_loadu_si512(w + kPanel + half * 32);
      std::uint16_t* const to = tiles + 2 * half * kTile + row * kRowOfTile;
      _mm512_store_si512(to, _mm512_unpacklo_epi16(a, b));
      _mm512_store_si512(to + kTile, _mm512_unpackhi_epi16(a, b));
    }
  }
}

/// Up to 16 rows, and the whole panel, which is woven on the way if it is not yet.
STAIRCASE_AMX_TARGET void multiply_16_rows(const std::uint16_t* x, std::int64_t x_stride,
                                           const std::uint16_t* w, bool is_woven, std::int64_t depth,
                                           float* result) {
  alignas(64) std::uint16_t block[kDepth * kPanel];
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (std::int64_t k = 0; k < depth; k += kDepth) {
    const std::uint16_t* tiles = w + k * kPanel;
    if (!is_woven) {
      for (std::int64_t i = 0; i < kDepth * kPanel; i += 32) {
        _mm_prefetch(tiles + kBytesAhead / 2 + i, _MM_HINT_T0);
      }
      weave(tiles, block);
      settle_memory();
      tiles = block;
    }
    _tile_loadd(4, x + k, x_stride * 2);
    _tile_loadd(6, tiles, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, tiles + kTile, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(6, tiles + 2 * kTile, 64);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(7, tiles + 3 * kTile, 64);
    _tile_dpbf16ps(3, 4, 7);
    settle_memory();
  }
  _tile_stored(0, result, kPanel * 4);
  _tile_stored(1, result + kSums, kPanel * 4);
  _tile_stored(2, result + 2 * kSums, kPanel * 4);
  _tile_stored(3, result + 3 * kSums, kPanel * 4);
}

/// 17 to 32 rows, and half of a woven panel: each tile that is loaded is multiplied twice.
STAIRCASE_AMX_TARGET void multiply_32_rows(const std::uint16_t* x, std::int64_t x_stride,
                                           const std::uint16_t* woven, std::int64_t depth, float* result) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (std::int64_t k = 0; k < depth; k += kDepth) {
    const std::uint16_t* const tiles = woven + k * kPanel;
    _tile_loadd(4, x + k, x_stride * 2);
    _tile_loadd(6, tiles, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, tiles + kTile, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, x + 16 * x_stride + k, x_stride * 2);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, result, kPanel * 4);
  _tile_stored(1, result + kSums, kPanel * 4);
  _tile_stored(2, result + 16 * kPanel, kPanel * 4);
  _tile_stored(3, result + 16 * kPanel + kSums, kPanel * 4);
}

}  // namespace

bool has_bfloat16_matrices(std::int64_t depth) {
  static const bool has = has_tiles();
  return has && depth % kDepth == 0;
}

void weave_panel(const std::uint16_t* w, std::int64_t depth, std::uint16_t* woven) {
  for (std::int64_t k = 0; k < depth; k += kDepth) weave(w + k * kPanel, woven + k * kPanel);
}

STAIRCASE_AMX_TARGET void multiply_matrices(const std::uint16_t* x, std::int64_t x_stride, std::int64_t rows,
                                            const std::uint16_t* w, bool is_woven, std::int64_t depth,
                                            float* result) {
  settle_memory();
  if (rows <= 16) {
    shape_tiles(rows, rows);
    multiply_16_rows(x, x_stride, w, is_woven, depth, result);
  } else {
    shape_tiles(16, rows - 16);
    multiply_32_rows(x, x_stride, w, depth, result);
    multiply_32_rows(x, x_stride, w + 2 * kTile, depth, result + 2 * kSums);
  }
  _tile_release();
  settle_memory();
  for (float* half = result; half < result + rows * kPanel; half += 2 * kSums) {
    __m512 a = _mm512_loadu_ps(half), b = _mm512_loadu_ps(half + kSums);
    from_woven(a, b);
    _mm512_storeu_ps(half, a);
    _mm512_storeu_ps(half + kSums, b);
  }
}

}  // namespace staircase

#else  // another architecture

namespace staircase {

bool has_bfloat16_tile() {
  return false;
}

BFloat16Tile bfloat16_tile(int, int) {
  return nullptr;
}

bool has_bfloat16_matrices(std::int64_t) {
  return false;
}

void weave_panel(const std::uint16_t*, std::int64_t, std::uint16_t*) {}

void multiply_matrices(const std::uint16_t*, std::int64_t, std::int64_t, const std::uint16_t*, bool,
                       std::int64_t, float*) {}

}  // namespace staircase

#endif
