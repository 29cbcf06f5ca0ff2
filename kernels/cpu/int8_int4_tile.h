// Products of weights in 8 or 4 bits with rows of x in 8 bits: the format of both, and the tiles for
// processors that multiply bytes. They multiply vectors (AVX-512 VNNI) or matrices (AMX).
//
// Neighbours of the depth share a scale, in a weight's output as in a row of x. A group has kGroup of them
// for weights in 8 bits and kInt4Group for weights in 4. In 8 bits scale = the largest magnitude / 127, and
// each number becomes the integer nearest to it / scale. 4 bits hold only the integers -8 to 7. To use them
// all, scale = the number furthest from zero, with its sign, / -8: it becomes -8, whether it is positive or
// negative.
// A group of x times a group of w is then a sum of integers, which is exact in any order, times both scales.
// The groups are added in the order of the depth, as one chain of multiply-adds. So all tiles, on any
// processor with a fused multiply-add, give the same bits.
#pragma once

#include <cstdint>

#include "kernels/cpu/cpu_device.h"
#include "kernels/half.h"

namespace staircase {

/// The processor multiplies this many neighbours of the depth in one lane.
constexpr std::int64_t kQuad = 4;

/// One group of a row of x.
template <std::int64_t kValues>
struct Int8Row {
  float scale;
  std::int32_t sum;  ///< of the values
  std::int8_t values[kValues];
};

/// One group of the outputs of a panel. The processor multiplies unsigned bytes by signed ones. So weights
/// are stored with kAdded added, and kAdded times the sum of the values of x is subtracted from a product. A
/// panel is in_features / kInputs of them, rounded up; its padding is 0, and so are the scales after the last
/// output.
struct alignas(64) Int8Panel {
  static constexpr std::int64_t kInputs = kGroup, kBits = 8, kInByte = 1, kAdded = 128;
  using Row = Int8Row<kInputs>;

  std::uint8_t values[kInputs / kQuad][kPanel][kQuad];
  float scales[kPanel];
};

/// The same in 4 bits: the upper half of a byte belongs to the quad after that of the lower half.
struct alignas(64) Int4Panel {
  static constexpr std::int64_t kInputs = kInt4Group, kBits = 4, kInByte = 2, kAdded = 8;
  using Row = Int8Row<kInputs>;

  std::uint8_t values[kInputs / kQuad / kInByte][kPanel][kQuad];
  std::uint16_t scales[kPanel];  ///< bfloat16
};

/// Groups of a row of that many values; the last one is padded with zeros.
template <typename Panel>
constexpr std::int64_t groups_of(std::int64_t depth) {
  return divide_up(depth, Panel::kInputs);
}

/// Calls function(panels) with `data` as a pointer to the panels of such weights.
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

/// The weight of row `in` of a panel for output `out` of its columns, as an integer.
template <typename Panel>
std::int32_t whole_of(const Panel* panel, std::int64_t in, std::int64_t out) {
  const std::int64_t k = in % Panel::kInputs, quad = k / kQuad;
  const std::int32_t byte = panel[in / Panel::kInputs].values[quad / Panel::kInByte][out][k % kQuad];
  return (byte >> quad % Panel::kInByte * Panel::kBits) % (1 << Panel::kBits) - Panel::kAdded;
}

/// The same weight as it is multiplied.
template <typename Panel>
float weight_of(const Panel* panel, std::int64_t in, std::int64_t out) {
  return static_cast<float>(whole_of(panel, in, out)) * scale_of(panel[in / Panel::kInputs], out);
}

/// Adds x [rows, groups] times w [groups, columns] to result [rows, columns]; the columns of w begin with
/// `column` of its panel. Neighbouring rows of x are x_stride groups apart, those of the result kPanel
/// elements. `next` is what TileRole::kNext prefetches.
template <typename Panel>
using Int8Tile = void (*)(const typename Panel::Row* x, std::int64_t x_stride, const Panel* w,
                          std::int64_t column, std::int64_t groups, float* result, const char* next);

/// Whether this processor has the instruction for it (AVX-512 VNNI).
bool has_int8_tile();

/// With six rows (four vectors of sums each), a prefill is no faster, and eight rows take longer.
constexpr int kInt8TileRows = 5;

/// The tile of that size: 1 to kInt8TileRows rows and 32 or 64 columns, and any role but kFirst. Only if
/// has_int8_tile().
template <typename Panel>
Int8Tile<Panel> int8_tile(int rows, int columns, TileRole role);

/// Whether this processor multiplies matrices of bytes, and the system allows it.
bool has_amx_int8();

/// The most rows of x that are multiplied together.
constexpr std::int64_t kInt8MatrixRows = 32;

/// With weights in 8 bits, matrices are faster than vectors from this many rows of a thread's piece on. In 4
/// bits they gain less: groups are half as deep, and bytes would have to be unpacked first.
constexpr std::int64_t kLeastInt8MatrixRows = 48;

/// Products by matrices, by one thread. As with AmxBFloat16 in bfloat16_tile.h, its registers are configured
/// only when the number of rows changes, and are released with this object.
class AmxInt8 {
 public:
  AmxInt8() = default;
  ~AmxInt8();
  AmxInt8(const AmxInt8&) = delete;
  AmxInt8& operator=(const AmxInt8&) = delete;

  /// As Int8Tile, with the same bits, for up to kInt8MatrixRows rows and for 32 or 64 columns. Only if
  /// has_amx_int8().
  void multiply(const Int8Panel::Row* x, std::int64_t x_stride, std::int64_t rows, const Int8Panel* w,
                std::int64_t column, std::int64_t columns, std::int64_t groups, float* result);

 private:
  [[maybe_unused]] std::int64_t rows_ = 0;  // 0: the registers are not configured
};

}  // namespace staircase
