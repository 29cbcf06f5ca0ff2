// TDPBF16PS multiplies matrices of 1 KB, as in rung 9 of the matrix product: 32 queries by 32 keys in four
// sums. Around the tile, all is as in rung 8.
#include "kernels/rungs/cpu/prefill_attention/paired_block.h"
#if defined(__x86_64__)
#include "kernels/cpu/amx_shapes.h"
#endif

namespace staircase::rungs::prefill_attention {

#if defined(__x86_64__)
namespace {

struct AmxTile {
  static constexpr std::int64_t kRows = 2 * kTile, kStep = 32;

  AmxTile() { shape_tiles(kRows); }
  ~AmxTile() { release_tiles(); }

  /// result [32, 64] = rows [32, depth] · panel [depth / 2, 64, 2], or += with kAdds.
  template <bool kAdds>
  static void multiply(const std::uint16_t* rows, std::int64_t row_stride, const std::uint16_t* panel,
                       std::int64_t depth, float* result, std::int64_t stride) {
    for (std::int64_t column = 0; column < kPanel; column += 2 * kTile)
      multiply_half<kAdds>(rows, row_stride * 2, panel + column * 2, depth, result + column, stride);
  }

 private:
  template <bool kAdds>
  STAIRCASE_AMX_TARGET static void multiply_half(const std::uint16_t* rows, std::int64_t row_bytes,
                                                 const std::uint16_t* panel, std::int64_t depth,
                                                 float* result, std::int64_t stride) {
    float* const below = result + kTile * stride;
    compiler_barrier();
    if constexpr (kAdds) {
      _tile_loadd(0, result, stride * 4);
      _tile_loadd(1, result + kTile, stride * 4);
      _tile_loadd(2, below, stride * 4);
      _tile_loadd(3, below + kTile, stride * 4);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    for (std::int64_t i = 0; i < depth; i += kStep) {
      _tile_loadd(4, rows + i, row_bytes);
      _tile_loadd(5, rows + i + kTile * row_bytes / 2, row_bytes);
      _tile_loadd(6, panel + i * kPanel, kPanel * 4);
      _tile_loadd(7, panel + i * kPanel + kTile * 2, kPanel * 4);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, result, stride * 4);
    _tile_stored(1, result + kTile, stride * 4);
    _tile_stored(2, below, stride * 4);
    _tile_stored(3, below + kTile, stride * 4);
    compiler_barrier();
  }
};

}  // namespace

const PrefillRung kAmx{"9-amx", "one instruction multiplies two matrices",
                       has_amx() ? run_in_pairs<AmxTile> : nullptr, has_amx() ? "" : "AMX"};

#else

const PrefillRung kAmx{"9-amx", "one instruction multiplies two matrices", nullptr, "AMX"};

#endif

}  // namespace staircase::rungs::prefill_attention
