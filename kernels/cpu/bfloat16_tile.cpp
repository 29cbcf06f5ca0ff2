// VDPBF16PS takes two neighbouring values of a row of x and two of a column of w, and adds both products to
// the sum of that row and column, for 16 columns at once. Two neighbouring rows of a panel fill one register;
// vpermw puts the two values of each column side by side. (Panels stored in that order would need no vpermw;
// it costs some 2 % of a prefill, and one order of panels for all types is worth more.)
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

template <int kRows, int kPanels>
__attribute__((target("avx512bw,avx512bf16"))) void multiply_tile(
    const std::uint16_t* __restrict x, std::int64_t x_stride, const std::uint16_t* __restrict w,
    std::int64_t panel_stride, std::int64_t depth, float* __restrict result) {
  // Column c of the first row goes to place 2c, that of the second to 2c + 1.
  alignas(64) static constexpr std::uint16_t kPairs[2 * kPanel] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                                   21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                                   11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i pairs = _mm512_load_si512(kPairs);
  __m512 sum[kRows][kPanels];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) sum[r][p] = _mm512_setzero_ps();
  }
  const std::uint16_t* ahead = w + kRowsAhead * kPanel;
  for (std::int64_t k = 0; k < depth; k += 2) {
    if (kRows > 2) {  // as in tile-inl.h
      if (k + kRowsAhead == depth) ahead += kPanels * panel_stride - depth * kPanel;
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) _mm_prefetch(ahead + p * panel_stride + k * kPanel, _MM_HINT_T0);
    }
    __m512i columns[kPanels];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      const __m512i two_rows = _mm512_loadu_si512(w + p * panel_stride + k * kPanel);
      columns[p] = _mm512_permutexvar_epi16(pairs, two_rows);
    }
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      std::int32_t two_values;
      std::memcpy(&two_values, x + r * x_stride + k, sizeof two_values);
      const __m512i value = _mm512_set1_epi32(two_values);
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) {
        sum[r][p] = _mm512_dpbf16_ps(sum[r][p], (__m512bh)value, (__m512bh)columns[p]);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) _mm512_storeu_ps(result + (r * kPanels + p) * kPanel, sum[r][p]);
  }
}

/// The tile of r rows is element r - 1; 24 registers hold the sums.
template <int kPanels, int... kLess>
constexpr auto tiles_of_rows(std::integer_sequence<int, kLess...>) {
  return std::array<BFloat16Tile, sizeof...(kLess)>{multiply_tile<kLess + 1, kPanels>...};
}
template <int kPanels>
constexpr auto kTileOfRows =
    tiles_of_rows<kPanels>(std::make_integer_sequence<int, std::min(12, 24 / kPanels)>());

}  // namespace

bool has_bfloat16_tile() {
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512bf16");
}

BFloat16Tile bfloat16_tile(int rows, int panels) {
  const auto row = static_cast<std::size_t>(rows - 1);
  return panels == 4   ? kTileOfRows<4>[row]
         : panels == 3 ? kTileOfRows<3>[row]
         : panels == 2 ? kTileOfRows<2>[row]
                       : kTileOfRows<1>[row];
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
