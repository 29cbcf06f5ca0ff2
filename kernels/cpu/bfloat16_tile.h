// The tile of tile-inl.h once more for processors that multiply in bfloat16, with both operands in 16 bits
// and the sums in float32. One instruction does twice the work of a multiply-add with vectors (AVX-512 BF16),
// or a tile of 16 by 16 sums and a depth of 32 with matrices (AMX).
#pragma once

#include <cstdint>

#include "kernels/cpu/cpu_device.h"

namespace staircase {

/// Adds x [rows, depth] times w [depth, columns] to result [rows, columns]; x and w are bfloat16, the depth
/// is even, and w is part of a panel. Neighbouring rows of x are x_stride elements apart, those of the result
/// kPanel. `next` is what TileRole::kNext prefetches.
using BFloat16Tile = void (*)(const std::uint16_t* x, std::int64_t x_stride, const std::uint16_t* w,
                              std::int64_t depth, float* result, const char* next);

/// Whether this processor has the instruction.
bool has_bfloat16_tile();

/// The tile of that size: 1 to 6 rows and 32 or 64 columns. Only if has_bfloat16_tile().
BFloat16Tile bfloat16_tile(int rows, int columns, TileRole role = TileRole::kAlone);

/// Whether this processor multiplies matrices, the system allows it, and the depth is a multiple of their
/// width. Does not depend on the number of rows: a row gets the same bits alone as among others.
bool has_amx_bfloat16(std::int64_t depth);

/// The most rows of x that are multiplied together.
constexpr std::int64_t kMatrixRows = 32;

/// Products by matrices, by one thread. Its registers are configured for the number of rows only when that
/// changes, since this takes as long as many products, and are released with this object.
class AmxBFloat16 {
 public:
  AmxBFloat16() = default;
  ~AmxBFloat16();
  AmxBFloat16(const AmxBFloat16&) = delete;
  AmxBFloat16& operator=(const AmxBFloat16&) = delete;

  /// result [rows, columns] = x [rows, depth] times w [depth, columns], for up to kMatrixRows rows and for
  /// 32 or 64 columns. x and w are bfloat16, and w is part of a panel. Neighbouring rows of x are x_stride
  /// elements apart, those of the result result_stride. Only if has_amx_bfloat16(depth). If it `adds` to
  /// the result, a product in several pieces of the depth gets the same bits as in one.
  void multiply(const std::uint16_t* x, std::int64_t x_stride, std::int64_t rows, const std::uint16_t* w,
                std::int64_t columns, std::int64_t depth, float* result, std::int64_t result_stride = kPanel,
                bool adds = false);

  /// result [16, columns] = x [16, depth] times w [depth / 2, columns, 2], for up to 16 columns: the same
  /// bits as the transposed product of w as rows and x as columns.
  void multiply_narrow(const std::uint16_t* x, std::int64_t x_stride, const std::uint16_t* w,
                       std::int64_t columns, std::int64_t depth, float* result);

 private:
  // Rows, or -columns of multiply_narrow. 0: the registers are not configured. Unused without such registers.
  [[maybe_unused]] std::int64_t shape_ = 0;
};

}  // namespace staircase
