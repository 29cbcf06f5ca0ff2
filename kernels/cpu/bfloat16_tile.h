// The tile of tile-inl.h once more for processors that multiply in bfloat16 (AVX-512 BF16), with both factors
// in 16 bits and the sums in float32: twice the work of a multiply-add in one instruction.
#pragma once

#include <cstdint>

namespace staircase {

/// Adds x [rows, depth] times w [depth, columns] to result [rows, columns]; x and w are bfloat16, and the
/// depth is even. Neighbouring rows of x lie x_stride elements apart, those of w and of the result kPanel.
using BFloat16Tile = void (*)(const std::uint16_t* x, std::int64_t x_stride, const std::uint16_t* w,
                              std::int64_t depth, float* result);

/// Whether this processor has the instruction.
bool has_bfloat16_tile();

/// The tile of that size: 1 to 6 rows and 32 or 64 columns. Only where has_bfloat16_tile().
BFloat16Tile bfloat16_tile(int rows, int columns);

}  // namespace staircase
