// VPDPBUSD multiplies four neighbouring bytes of a row of x by four of a column of w. It adds the four
// products to the sum of that row and column, for 16 columns at once. That is why panels of bytes interleave
// four neighbours along the depth (kQuad).
//
// TDPBSUD does the same for 16 rows of x, 16 columns of w and a depth of 64, so a group in 8 bits takes one
// instruction. The sums of a group are integers, which are exact in any order, so both instructions give the
// same bits.
//
// Highway 1.0 lacks these instructions, so this file uses intrinsics and assembly.
#include "kernels/cpu/int8_int4_tile.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <array>
#include <cstring>
#include <utility>

#include "kernels/cpu/amx_registers.h"
#include "kernels/cpu/amx_shapes.h"
#include "kernels/cpu/bfloat16_target.h"

namespace staircase {
namespace {

#define STAIRCASE_VNNI_TARGET __attribute__((target("avx512bw,avx512vnni" STAIRCASE_EVEX512)))

/// VPDPBUSD in assembly: around its intrinsic, GCC 12 copies the sums back and forth, which halves the speed.
STAIRCASE_VNNI_TARGET inline void add_products(__m512i columns, __m512i values, __m512i& sum) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(columns), "v"(values));
}

/// The unsigned numbers in a vector of bytes: in 8 bits the bytes, in 4 bits their lower or upper halves.
template <typename Panel>
STAIRCASE_VNNI_TARGET inline __m512i part_of(__m512i bytes, int part) {
  if constexpr (Panel::kInByte == 1) return bytes;
  return _mm512_and_si512(part == 0 ? bytes : _mm512_srli_epi16(bytes, 4), _mm512_set1_epi8(0x0F));
}

STAIRCASE_VNNI_TARGET inline __m512 load_scales(const float* scales) {
  return _mm512_loadu_ps(scales);
}
/// Widens bfloat16 scales: bfloat16 is the upper half of a float32. GCC 12 warns about the intrinsics without
/// a mask, which start from a deliberately uninitialized vector.
STAIRCASE_VNNI_TARGET inline __m512 load_scales(const std::uint16_t* scales) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales));
  constexpr __mmask16 kAll = 0xFFFF;
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAll, _mm512_maskz_cvtepu16_epi32(kAll, halves), 16));
}

/// kPastCaches: prefetches so that lines do not evict others from the larger caches, because a single row
/// uses each line once. A Xeon fetches only a few such lines at a time, and decodes two to four times as fast
/// without this.
template <typename Panel, int kRows, int kColumns, TileRole kRole, bool kPastCaches = false>
STAIRCASE_VNNI_TARGET void multiply_tile(const typename Panel::Row* __restrict x, std::int64_t x_stride,
                                         const Panel* __restrict w, std::int64_t column, std::int64_t groups,
                                         float* __restrict result, const char* next) {
  constexpr std::int64_t kInputs = Panel::kInputs, kInByte = Panel::kInByte;
  constexpr int kVectors = kColumns / 16;
  // In 8 bits the second tile has time to prefetch all lines far ahead.
  constexpr bool kSecond = kRole == TileRole::kSecond;
  const std::int64_t ahead = (kSecond ? kBytesFarAhead : kBytesAhead) / kColumns * kPanel;
  constexpr auto kHint = kSecond ? _MM_HINT_T1 : kPastCaches ? _MM_HINT_NTA : _MM_HINT_T0;
  constexpr bool kAlsoFar = kRows == 1 && !kPastCaches;
  for (std::int64_t g = 0; g < groups; ++g) {
    __m512i sum[kRows][kVectors];
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = _mm512_set1_epi32(-static_cast<std::int32_t>(Panel::kAdded) * x[r * x_stride + g].sum);
      }
    }
    for (std::int64_t k = 0; k < kInputs / kQuad; k += kInByte) {
      const std::uint8_t* const quads = w[g].values[k / kInByte][column];
      if (kRole == TileRole::kNext)
        _mm_prefetch(next + (g * kInputs / kQuad + k) / kInByte * 64, _MM_HINT_T1);
      __m512i bytes[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        if (kRole != TileRole::kNext) _mm_prefetch(quads + v * 64 + ahead, kHint);
        if (kAlsoFar) _mm_prefetch(quads + v * 64 + kBytesFarAheadOfRow, _MM_HINT_T1);
        bytes[v] = _mm512_loadu_si512(quads + v * 64);
      }
#pragma GCC unroll 2
      for (int part = 0; part < kInByte; ++part) {
        __m512i columns[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) columns[v] = part_of<Panel>(bytes[v], part);
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          std::int32_t four_values;
          std::memcpy(&four_values, x[r * x_stride + g].values + (k + part) * kQuad, sizeof four_values);
          const __m512i values = _mm512_set1_epi32(four_values);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) add_products(columns[v], values, sum[r][v]);
        }
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const auto* const scales = w[g].scales + column + v * 16;
      if (kRole != TileRole::kNext) _mm_prefetch(reinterpret_cast<const char*>(scales) + ahead, kHint);
      const __m512 scale = load_scales(scales);
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

/// Element r - 1 is the tile of r rows.
template <typename Panel, int kColumns, TileRole kRole, int... kLess>
constexpr auto tiles_of_rows(std::integer_sequence<int, kLess...>) {
  return std::array<Int8Tile<Panel>, sizeof...(kLess)>{multiply_tile<Panel, kLess + 1, kColumns, kRole>...};
}
template <typename Panel, int kColumns, TileRole kRole>
constexpr auto kTileOfRows =
    tiles_of_rows<Panel, kColumns, kRole>(std::make_integer_sequence<int, kInt8TileRows>());

}  // namespace

bool has_int8_tile() {
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni");
}

template <typename Panel>
Int8Tile<Panel> int8_tile(int rows, int columns, TileRole role) {
  if (rows == 1 && role == TileRole::kAlone && !kIsIntel) {
    return columns == 64 ? multiply_tile<Panel, 1, 64, TileRole::kAlone, true>
                         : multiply_tile<Panel, 1, 32, TileRole::kAlone, true>;
  }
  const auto of_role = [&]<TileRole kRole>() {
    const auto row = static_cast<std::size_t>(rows - 1);
    return columns == 64 ? kTileOfRows<Panel, 64, kRole>[row] : kTileOfRows<Panel, 32, kRole>[row];
  };
  if (role == TileRole::kSecond) return of_role.template operator()<TileRole::kSecond>();
  if (role == TileRole::kNext) return of_role.template operator()<TileRole::kNext>();
  return of_role.template operator()<TileRole::kAlone>();
}

// ── AMX ──

namespace {

static_assert(kGroup == 64, "a group is as deep as a tile");
static_assert(kHalfPanel == 2 * kTile, "tiles 0 and 1 are the sums of half a panel");

/// sums [kInt8MatrixRows, kHalfPanel] = x [rows, kGroup] times the stored weights of a group.
STAIRCASE_AMX_TARGET void multiply_group(const Int8Panel::Row* x, std::int64_t x_stride, std::int64_t rows,
                                         const std::uint8_t* w, std::int32_t* sums) {
  constexpr std::int64_t kSumBytes = kHalfPanel * 4, kQuadBytes = kPanel * kQuad;
  const std::int64_t x_bytes = x_stride * std::int64_t{sizeof(Int8Panel::Row)};
  _tile_zero(0);
  _tile_zero(1);
  _tile_loadd(4, x->values, x_bytes);
  _tile_loadd(6, w, kQuadBytes);
  _tile_dpbsud(0, 4, 6);
  _tile_loadd(7, w + kTile * kQuad, kQuadBytes);
  _tile_dpbsud(1, 4, 7);
  if (rows > kTile) {
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(5, x[kTile * x_stride].values, x_bytes);
    _tile_dpbsud(2, 5, 6);
    _tile_dpbsud(3, 5, 7);
    _tile_stored(2, sums + kTile * kHalfPanel, kSumBytes);
    _tile_stored(3, sums + kTile * kHalfPanel + kTile, kSumBytes);
  }
  _tile_stored(0, sums, kSumBytes);
  _tile_stored(1, sums + kTile, kSumBytes);
}

/// Adds the sums of a group, times both scales, to the result.
STAIRCASE_VNNI_TARGET void add_group(const std::int32_t* sums, const Int8Panel::Row* x, std::int64_t x_stride,
                                     std::int64_t rows, const float* scales, float* result) {
  const __m512 low = load_scales(scales), high = load_scales(scales + kTile);
  for (std::int64_t r = 0; r < rows; ++r, x += x_stride, sums += kHalfPanel, result += kPanel) {
    const __m512i added = _mm512_set1_epi32(std::int32_t{Int8Panel::kAdded} * x->sum);
    const __m512 scale = _mm512_set1_ps(x->scale);
    const auto add = [&](std::int64_t column, __m512 of_columns) STAIRCASE_VNNI_TARGET {
      const __m512i sum = _mm512_sub_epi32(_mm512_loadu_si512(sums + column), added);
      const __m512 wide = __builtin_convertvector((__v16si)sum, __v16sf);
      float* const total = result + column;
      _mm512_storeu_ps(total,
                       _mm512_fmadd_ps(wide, _mm512_mul_ps(scale, of_columns), _mm512_loadu_ps(total)));
    };
    add(0, low);
    add(kTile, high);
  }
}

}  // namespace

bool has_amx_int8() {
  static const bool has = has_int8_tile() && has_amx();
  return has;
}

AmxInt8::~AmxInt8() {
  if (rows_ != 0) release_tiles();
}

void AmxInt8::multiply(const Int8Panel::Row* x, std::int64_t x_stride, std::int64_t rows, const Int8Panel* w,
                       std::int64_t column, std::int64_t columns, std::int64_t groups, float* result) {
  if (rows != rows_) {
    shape_tiles(rows);
    rows_ = rows;
  }
  // One step multiplies a group of half a panel, and adds the previous step's sums to the result. The two are
  // independent, so the processor does both at the same time.
  alignas(64) std::int32_t sums[2][kInt8MatrixRows * kHalfPanel];
  const std::int64_t halves = columns / kHalfPanel, steps = groups * halves;
  for (std::int64_t step = 0; step <= steps; ++step) {
    if (step < steps) {
      const std::int64_t g = step / halves, first = column + step % halves * kHalfPanel;
      compiler_barrier();
      multiply_group(x + g, x_stride, rows, w[g].values[0][first], sums[step % 2]);
      compiler_barrier();
    }
    if (step > 0) {
      const std::int64_t g = (step - 1) / halves, first = (step - 1) % halves * kHalfPanel;
      add_group(sums[(step - 1) % 2], x + g, x_stride, rows, w[g].scales + column + first, result + first);
    }
  }
}

}  // namespace staircase

#else  // another architecture

namespace staircase {

bool has_int8_tile() {
  return false;
}

template <typename Panel>
Int8Tile<Panel> int8_tile(int, int, TileRole) {
  return nullptr;
}

bool has_amx_int8() {
  return false;
}

AmxInt8::~AmxInt8() = default;

void AmxInt8::multiply(const Int8Panel::Row*, std::int64_t, std::int64_t, const Int8Panel*, std::int64_t,
                       std::int64_t, std::int64_t, float*) {}

}  // namespace staircase

#endif

namespace staircase {

template Int8Tile<Int8Panel> int8_tile(int, int, TileRole);
template Int8Tile<Int4Panel> int8_tile(int, int, TileRole);

}  // namespace staircase
