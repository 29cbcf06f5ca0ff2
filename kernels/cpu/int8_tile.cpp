// VPDPBUSD takes four neighbouring bytes of a row of x and four of a column of w, and adds the four products
// to the sum of that row and column, for 16 columns at once. That is why panels of bytes keep four neighbours
// of the depth side by side (kQuad).
//
// Highway 1.0 does not know the instruction, so this file calls it by its name.
#include "kernels/cpu/int8_tile.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <array>
#include <cstring>
#include <utility>

#include "kernels/cpu/bfloat16_target.h"

namespace staircase {
namespace {

#define STAIRCASE_VNNI_TARGET __attribute__((target("avx512bw,avx512vnni" STAIRCASE_EVEX512)))

/// The instruction itself: around its intrinsic GCC 12 copies the sums to and fro, at half the speed.
STAIRCASE_VNNI_TARGET inline void add_products(__m512i columns, __m512i values, __m512i& sum) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(columns), "v"(values));
}

template <int kRows, int kColumns>
STAIRCASE_VNNI_TARGET void multiply_tile(const Int8Row* __restrict x, std::int64_t x_stride,
                                         const Int8Panel* __restrict w, std::int64_t column,
                                         std::int64_t groups, float* __restrict result) {
  constexpr int kVectors = kColumns / 16;
  const std::int64_t ahead = kBytesAhead / kColumns * kPanel;
  // One row takes each line once: it need not push others out of the larger caches.
  constexpr auto kHint = kRows == 1 ? _MM_HINT_NTA : _MM_HINT_T0;
  for (std::int64_t g = 0; g < groups; ++g) {
    __m512i sum[kRows][kVectors];
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_set1_epi32(x[r * x_stride + g].start);
    }
    for (std::int64_t k = 0; k < kGroup / kQuad; ++k) {
      const std::uint8_t* const quads = w[g].values[k][column];
      __m512i columns[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        _mm_prefetch(quads + v * 64 + ahead, kHint);
        columns[v] = _mm512_loadu_si512(quads + v * 64);
      }
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        std::int32_t four_values;
        std::memcpy(&four_values, x[r * x_stride + g].values + k * kQuad, sizeof four_values);
        const __m512i values = _mm512_set1_epi32(four_values);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) add_products(columns[v], values, sum[r][v]);
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const float* const scales = w[g].scales + column + v * 16;
      _mm_prefetch(reinterpret_cast<const char*>(scales) + ahead, kHint);
      const __m512 scale = _mm512_loadu_ps(scales);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        float* const total = result + r * kPanel + v * 16;
        const __m512 both = _mm512_mul_ps(_mm512_set1_ps(x[r * x_stride + g].scale), scale);
        const __m512 wide = __builtin_convertvector((__v16si)sum[r][v], __v16sf);
        _mm512_storeu_ps(total, _mm512_fmadd_ps(wide, both, _mm512_loadu_ps(total)));
      }
    }
  }
}

/// The tile of r rows is element r - 1.
template <int kColumns, int... kLess>
constexpr auto tiles_of_rows(std::integer_sequence<int, kLess...>) {
  return std::array<Int8Tile, sizeof...(kLess)>{multiply_tile<kLess + 1, kColumns>...};
}
template <int kColumns>
constexpr auto kTileOfRows = tiles_of_rows<kColumns>(std::make_integer_sequence<int, kInt8TileRows>());

}  // namespace

bool has_int8_tile() {
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni");
}

Int8Tile int8_tile(int rows, int columns) {
  const auto row = static_cast<std::size_t>(rows - 1);
  return columns == 64 ? kTileOfRows<64>[row] : kTileOfRows<32>[row];
}

}  // namespace staircase

#else  // another architecture

namespace staircase {

bool has_int8_tile() {
  return false;
}

Int8Tile int8_tile(int, int) {
  return nullptr;
}

}  // namespace staircase

#endif
