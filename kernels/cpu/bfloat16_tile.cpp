// VDPBF16PS takes two neighbouring values of a row of x and two of a column of w, and adds both products to
// the sum of that row and column, for 16 columns at once. So two rows of w are woven into each other, 32
// columns at a time, which puts the two values of each column side by side. (Panels stored in that order
// would need no weaving; it costs some 2 % of a prefill, and one order of panels for all types is worth
// more.)
//
// The size of the tile follows from the same arithmetic as in tile-inl.h. As there, every element is one
// chain in the order of the depth, whatever else is computed beside it.
//
// Highway 1.0 knows neither the instruction nor a target that has it, so this file calls it by its name.
#include "kernels/cpu/bfloat16_tile.h"

#if defined(__x86_64__)

#include <immintrin.h>

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

}  // namespace staircase

#else  // another architecture

namespace staircase {

bool has_bfloat16_tile() {
  return false;
}

BFloat16Tile bfloat16_tile(int, int) {
  return nullptr;
}

}  // namespace staircase

#endif
