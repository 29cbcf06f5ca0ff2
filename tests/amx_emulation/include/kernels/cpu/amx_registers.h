// The registers of AMX as plain arrays, and its instructions as plain loops. The tests of the products can
// then run on any processor that multiplies bfloat16 by vectors. See the Intel 64 and IA-32 Architectures
// Software Developer's Manual, volume 2: LDTILECFG, TILELOADD, TILESTORED, TILEZERO, TDPBF16PS, TDPBSUD.
// Where a processor would raise an exception, the program ends with a sentence.
#pragma once

#include <immintrin.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/bfloat16_target.h"

#define STAIRCASE_AMX_TARGET STAIRCASE_TARGET

namespace staircase {

namespace emulated {

constexpr int kRegisters = 8, kMostRows = 16, kMostBytes = 64;

struct Tile {
  int rows = 0, bytes = 0;  ///< 0: without a shape
  std::uint8_t data[kMostRows][kMostBytes] = {};
};

inline thread_local Tile tiles[kRegisters];

/// Rows that products have multiplied since the program began.
inline std::atomic<long> rows_multiplied = 0;

inline void require(bool good, const char* sentence) {
  if (good) return;
  std::fprintf(stderr, "The emulation of AMX stops here: %s.\n", sentence);
  std::abort();
}

inline Tile& shaped(int number) {
  require(tiles[number].rows > 0, "an instruction names a tile that has no shape");
  return tiles[number];
}

/// Of the 64 bytes the first is the palette and the second the start row. From byte 16 on there are the bytes
/// of a row of each tile, in 16 bits; from byte 48 on, its rows.
inline void load_shapes(const void* shapes) {
  const auto* const byte = static_cast<const std::uint8_t*>(shapes);
  require(byte[0] == 1 && byte[1] == 0, "LDTILECFG wants palette 1 and start row 0");
  for (int t = 0; t < kRegisters; ++t) {
    const int rows = byte[48 + t], bytes = byte[16 + 2 * t] | byte[17 + 2 * t] << 8;
    require(rows <= kMostRows && bytes <= kMostBytes && (rows == 0) == (bytes == 0),
            "LDTILECFG wants up to 16 rows of up to 64 bytes, or none of either");
    tiles[t] = {.rows = rows, .bytes = bytes};
  }
}

inline void release() {
  for (Tile& tile : tiles) tile = {};
}

inline void zero(int number) {
  std::memset(shaped(number).data, 0, sizeof tiles[number].data);
}

/// Bytes and rows beyond the shape become zeros.
inline void load(int number, const void* from, std::int64_t stride) {
  Tile& tile = shaped(number);
  zero(number);
  for (int r = 0; r < tile.rows; ++r) {
    std::memcpy(tile.data[r], static_cast<const char*>(from) + r * stride,
                static_cast<std::size_t>(tile.bytes));
  }
}

inline void store(int number, void* to, std::int64_t stride) {
  const Tile& tile = shaped(number);
  for (int r = 0; r < tile.rows; ++r) {
    std::memcpy(static_cast<char*>(to) + r * stride, tile.data[r], static_cast<std::size_t>(tile.bytes));
  }
}

/// Numbers too small for all their bits count as zero, and no result is one.
inline float flushed(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}

/// The bfloat16 with that index in a row.
inline float element(const Tile& tile, int row, int index) {
  std::uint16_t half;
  std::memcpy(&half, tile.data[row] + index * 2, sizeof half);
  return flushed(std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16));
}

/// Ends the program unless sum += a b is possible, and counts its rows.
inline void begin_product(int sum_number, int a_number, int b_number) {
  const Tile &sum = shaped(sum_number), &a = shaped(a_number), &b = shaped(b_number);
  require(sum_number != a_number && sum_number != b_number && a_number != b_number,
          "a product wants three tiles");
  require(sum.rows == a.rows && sum.bytes == b.bytes && a.bytes == b.rows * 4,
          "a product wants tiles whose shapes fit");
  rows_multiplied += a.rows;
}

/// sum += a b in bfloat16, with pairs of the depth side by side in a row of b. Even and odd products are
/// added up apart, and then both to the sum.
inline void multiply_bfloat16(int sum_number, int a_number, int b_number) {
  begin_product(sum_number, a_number, b_number);
  Tile& sum = tiles[sum_number];
  const Tile &a = tiles[a_number], &b = tiles[b_number];
  for (int m = 0; m < a.rows; ++m) {
    for (int n = 0; n < sum.bytes / 4; ++n) {
      float even = 0, odd = 0, total;
      for (int k = 0; k < b.rows; ++k) {
        even = flushed(even + element(a, m, 2 * k) * element(b, k, 2 * n));
        odd = flushed(odd + element(a, m, 2 * k + 1) * element(b, k, 2 * n + 1));
      }
      std::memcpy(&total, sum.data[m] + n * 4, sizeof total);
      total = flushed(flushed(total) + flushed(even + odd));
      std::memcpy(sum.data[m] + n * 4, &total, sizeof total);
    }
  }
}

/// sum += a b with signed bytes in a and unsigned ones in b, four of the depth side by side in a row of b.
inline void multiply_bytes(int sum_number, int a_number, int b_number) {
  begin_product(sum_number, a_number, b_number);
  Tile& sum = tiles[sum_number];
  const Tile &a = tiles[a_number], &b = tiles[b_number];
  for (int m = 0; m < a.rows; ++m) {
    for (int n = 0; n < sum.bytes / 4; ++n) {
      std::int32_t total;
      std::memcpy(&total, sum.data[m] + n * 4, sizeof total);
      for (int k = 0; k < a.bytes; ++k) {
        total += static_cast<std::int8_t>(a.data[m][k]) * b.data[k / 4][n * 4 + k % 4];
      }
      std::memcpy(sum.data[m] + n * 4, &total, sizeof total);
    }
  }
}

}  // namespace emulated

inline bool has_amx() {
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512bf16");
}

inline void load_amx_shapes(const void* shapes) {
  emulated::load_shapes(shapes);
}

}  // namespace staircase

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbsud
#undef _tile_release
#define _tile_zero staircase::emulated::zero
#define _tile_loadd staircase::emulated::load
#define _tile_stored staircase::emulated::store
#define _tile_dpbf16ps staircase::emulated::multiply_bfloat16
#define _tile_dpbsud staircase::emulated::multiply_bytes
#define _tile_release staircase::emulated::release
