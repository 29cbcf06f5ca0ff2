// Products of weights in 8 or 4 bits with rows of x in 8 bits: the format of both, and the tiles for
// processors that multiply bytes. These multiply vectors (AVX-512 VNNI) or matrices (AMX).
//
// Groups of neighbours along the depth share a scale, both in an output's weights and in a row of x. A group
// has kGroup numbers for weights in 8 bits and kInt4Group for weights in 4 bits. In 8 bits scale = the
// largest magnitude / 127, and a number n becomes the integer nearest to n / scale. 4 bits hold only the
// integers -8 to 7. To use all of them, scale = the number furthest from zero, with its sign, / -8, so this
// number always becomes -8. The product of a group of x and a group of w is then a sum of integers, which is
// exact in any order, times both scales. The groups are added in the order of the depth, as one chain of
// multiply-adds. So all tiles give the same bits on any processor with a fused multiply-add.
#pragma once

#include <cstdint>

#include "kernels/cpu/cpu_device.h"
#include "kernels/half.h"

namespace staircase {

/// How many neighbours along the depth the processor multiplies in one lane.
constexpr std::int64_t kQuad = 4;

/// One group of a row of x.
template <std::int64_t kValues>
struct Int8Row {
  float scale;
  std::int32_t sum;  ///< the sum of the values
  std::int8_t values[kValues];
};

/// One group of inputs for all outputs of a panel. The processor multiplies unsigned bytes by signed ones. So
/// weights are stored with kAdded added, and kAdded times the sum of the values of x is subtracted from the
/// product. A panel consists of in_features / kInputs groups, rounded up. Its padding is 0, and so are the
/// scales after the last output.
struct alignas(64) Int8Panel {
  static constexpr std::int64_t kInputs = kGroup, kBits = 8, kInByte = 1, kAdded = 128;
  using Row = Int8Row<kInputs>;

  std::uint8_t values[kInputs / kQuad][kPanel][kQuad];
  float scales[kPanel];
};

/// One group in 4 bits. The lower half of a byte belongs to one quad, and the upper half to the next.
struct alignas(64) Int4Panel {
  static constexpr std::int64_t kInputs = kInt4Group, kBits = 4, kInByte = 2, kAdded = 8;
  using Row = Int8Row<kInputs>;

  std::uint8_t values[kInputs / kQuad / kInByte][kPanel][kQuad];
  std::uint16_t scales[kPanel];  ///< bfloat16
};

/// The number of groups in a row of `depth` values. The last group is padded with zeros.
template <typename Panel>
constexpr std::int64_t groups_of(std::int64_t depth) {
  return divide_up(depth, Panel::kInputs);
}

/// Calls function(panels) with `data` as a pointer to the panels of weights of this type.
template <typename Function>
auto with_panels(DType dtype, void* data, const Function& function) {
  return dtype == DType::kInt4 ? function(static_cast<Int4Panel*>(data))
                               : function(static_cast<Int8Panel*>(data));
}

inline float scale_of(const Int8Panel& group, std::int64_t out) {
  return group.scales[out];
}
inline float scale_of(const Int4Panel& group, std::int64_t out) {
  return float32_from_bfloat16(group.scales[out]);
}

/// The weight in row `in` and column `out` of a panel, as an integer.
template <typename Panel>
std::int32_t whole_of(const Panel* panel, std::int64_t in, std::int64_t out) {
  const std::int64_t k = in % Panel::kInputs, quad = k / kQuad;
  const std::int32_t byte = panel[in / Panel::kInputs].values[quad / Panel::kInByte][out][k % kQuad];
  return (byte >> quad % Panel::kInByte * Panel::kBits) % (1 << Panel::kBits) - Panel::kAdded;
}

/// The weight in row `in` and column `out` of a panel, times its scale.
template <typename Panel>
float weight_of(const Panel* panel, std::int64_t in, std::int64_t out) {
  return static_cast<float>(whole_of(panel, in, out)) * scale_of(panel[in / Panel::kInputs], out);
}

/// Adds x [rows, groups] times w [groups, columns] to result [rows, columns]. The columns of w begin with
/// `column` of its panel. Neighbouring rows are x_stride groups apart in x and kPanel elements in the result.
/// TileRole::kNext prefetches from `next`.
template <typename Panel>
using Int8Tile = void (*)(const typename Panel::Row* x, std::int64_t x_stride, const Panel* w,
                          std::int64_t column, std::int64_t groups, float* result, const char* next);

/// Whether this processor has VPDPBUSD (AVX-512 VNNI).
bool has_int8_tile();

/// The maximum number of rows of a tile. With six rows (four vectors of sums each), a prefill is no faster,
/// and eight rows take longer.
constexpr int kInt8TileRows = 5;

/// Returns the tile of this size: 1 to kInt8TileRows rows and 32 or 64 columns, with any role except kFirst.
/// Call only if has_int8_tile().
template <typename Panel>
Int8Tile<Panel> int8_tile(int rows, int columns, TileRole role);

/// Whether this processor multiplies matrices of bytes, and the system allows it.
bool has_amx_int8();

/// The maximum number of rows of x that are multiplied together.
constexpr std::int64_t kInt8MatrixRows = 32;

/// With weights in 8 bits, matrices are faster than vectors from this many rows per thread on. They would
/// gain less in 4 bits: groups are half as deep, and bytes would have to be unpacked first.
constexpr std::int64_t kLeastInt8MatrixRows = 48;

/// Multiplies with matrix instructions on one thread. As with AmxBFloat16 in bfloat16_tile.h, the registers
/// are configured only when the number of rows changes, and the destructor releases them.
class AmxInt8 {
 public:
  AmxInt8() = default;
  ~AmxInt8();
  AmxInt8(const AmxInt8&) = delete;
  AmxInt8& operator=(const AmxInt8&) = delete;

  /// Computes what an Int8Tile computes, with the same bits, for up to kInt8MatrixRows rows and for 32 or 64
  /// columns. Call only if has_amx_int8().
  void multiply(const Int8Panel::Row* x, std::int64_t x_stride, std::int64_t rows, const Int8Panel* w,
                std::int64_t column, std::int64_t columns, std::int64_t groups, float* result);

 private:
  [[maybe_unused]] std::int64_t rows_ = 0;  // 0: the registers are not configured
};

}  // namespace staircase
