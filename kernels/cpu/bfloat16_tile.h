// The tile of tile-inl.h once more for processors that multiply in bfloat16 (AVX-512 BF16), with both factors
// in 16 bits and the sums in float32: twice the work of a multiply-add in one instruction.
#pragma once

#include <cstdint>

namespace staircase {

/// Writes result [rows, panels · 16] = x [rows, depth] times those panels of w; both are bfloat16, and the
/// depth is even. Neighbouring rows of x lie x_stride elements apart, neighbouring panels of w panel_stride.
using BFloat16Tile = void (*)(const std::uint16_t* x, std::int64_t x_stride, const std::uint16_t* w,
                              std::int64_t panel_stride, std::int64_t depth, float* result);

/// Whether this processor has the instruction.
bool has_bfloat16_tile();

/// The tile of that size: 1 to 4 panels, and as many rows as tile-inl.h takes at a time with them. Only where
/// has_bfloat16_tile().
BFloat16Tile bfloat16_tile(int rows, int panels);

}  // namespace staircase
