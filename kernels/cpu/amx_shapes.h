// What all products in AMX registers ("tiles", 1 KB each) share: shapes, release and a barrier. Tiles 0 to 3
// hold sums, 4 and 5 rows of x, and 6 and 7 columns of w. Only on x86-64.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/amx_registers.h"

namespace staircase {

constexpr std::int64_t kTile = 16;  // the rows of a tile of x, and the columns of a tile of w

/// The operand of LDTILECFG: how many rows of how many bytes each tile has.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

/// Configures the tiles for this many rows of x and 64 bytes of the depth.
STAIRCASE_AMX_TARGET inline void shape_tiles(std::int64_t x_rows) {
  const std::int64_t low = std::min(x_rows, kTile), high = x_rows > kTile ? x_rows - kTile : x_rows;
  TileShapes shapes;
  const std::int64_t rows[] = {low, low, high, high, low, high, kTile, kTile};
  for (int t = 0; t < 8; ++t) {
    shapes.row_bytes[t] = 64;
    shapes.rows[t] = static_cast<std::uint8_t>(rows[t]);
  }
  load_amx_shapes(&shapes);
}

/// Releases the tiles. This is a separate function because GCC cannot compile a destructor for another
/// instruction set.
STAIRCASE_AMX_TARGET inline void release_tiles() {
  _tile_release();
}

/// A compiler barrier around the tile instructions: the compiler cannot see which memory they read and write.
inline void compiler_barrier() {
  asm volatile("" ::: "memory");
}

}  // namespace staircase
