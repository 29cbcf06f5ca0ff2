// The tile of tile-inl.h for processors that multiply bfloat16, with both operands in 16 bits and the sums in
// float32. With vectors (AVX-512 BF16), one instruction does twice the work of a multiply-add. With matrices
// (AMX), one instruction computes 16 by 16 sums over a depth of 32.
#pragma once

#include <cstdint>

#include "kernels/cpu/cpu_device.h"

namespace staircase {

/// Adds x [rows, depth] times w [depth, columns] to result [rows, columns]. x and w are bfloat16, the depth
/// is even, and w is part of a panel. Neighbouring rows are x_stride elements apart in x and kPanel in the
/// result. TileRole::kNext prefetches from `next`.
using BFloat16Tile = void (*)(const std::uint16_t* x, std::int64_t x_stride, const std::uint16_t* w,
                              std::int64_t depth, float* result, const char* next);

/// Whether this processor has the vector instruction, VDPBF16PS.
bool has_bfloat16_tile();

/// Returns the tile of this size: 1 to 6 rows and 32 or 64 columns. Call only if has_bfloat16_tile().
BFloat16Tile bfloat16_tile(int rows, int columns, TileRole role = TileRole::kAlone);

/// Whether this processor multiplies matrices, the system allows it, and the depth is a multiple of their
/// width. The answer does not depend on the number of rows: a row must get the same bits alone and among
/// other rows.
bool has_amx_bfloat16(std::int64_t depth);

/// The maximum number of rows of x that are multiplied together.
constexpr std::int64_t kMatrixRows = 32;

/// Multiplies with matrix instructions on one thread. Configuring the registers takes as long as many
/// products, so it happens only when the number of rows changes. The destructor releases them.
class AmxBFloat16 {
 public:
  AmxBFloat16() = default;
  ~AmxBFloat16();
  AmxBFloat16(const AmxBFloat16&) = delete;
  AmxBFloat16& operator=(const AmxBFloat16&) = delete;

  /// result [rows, columns] = x [rows, depth] times w [depth, columns], for up to kMatrixRows rows and for 32
  /// or 64 columns. x and w are bfloat16, and w is part of a panel. Neighbouring rows are x_stride elements
  /// apart in x and result_stride in the result. Call only if has_amx_bfloat16(depth).
  void multiply(const std::uint16_t* x, std::int64_t x_stride, std::int64_t rows, const std::uint16_t* w,
                std::int64_t columns, std::int64_t depth, float* result, std::int64_t result_stride = kPanel);

  /// result [16, columns] = x [16, depth] times w [depth / 2, columns, 2], for up to 16 columns: the same
  /// bits as the transposed product of w as rows and x as columns.
  void multiply_narrow(const std::uint16_t* x, std::int64_t x_stride, const std::uint16_t* w,
                       std::int64_t columns, std::int64_t depth, float* result);

 private:
  // The rows, or minus the columns of multiply_narrow; 0 if the registers are not configured. Unused on
  // processors without them.
  [[maybe_unused]] std::int64_t shape_ = 0;
};

}  // namespace staircase
