// Products of weights in 8 bits with rows of x in 8 bits: how both are kept, and the tile for processors that
// multiply bytes.
//
// kGroup neighbours of the depth share a scale, those of a weight's output and those of a row of x alike:
// scale = the largest of them / 127, and each becomes the whole number nearest to it / scale. A group of x
// times a group of w is then a sum of whole numbers, which is exact in any order, times both scales. Over the
// groups it goes in the order of the depth, as one chain of multiply-adds. So all tiles, on any processor
// with a fused multiply-add, give the same bits.
#pragma once

#include <cstdint>

#include "kernels/cpu/cpu_device.h"

namespace staircase {

/// Groups of a row of that many values; the last one is filled up with zeros.
constexpr std::int64_t groups_of(std::int64_t depth) {
  return divide_up(depth, kGroup);
}

/// The processor multiplies so many neighbours of the depth in one lane.
constexpr std::int64_t kQuad = 4;

/// One group of a row of x. The processor multiplies bytes without a sign by bytes with one. So weights are
/// kept with 128 added, and `start`, -128 times the sum of the values, is what a sum must start from.
struct Int8Row {
  float scale;
  std::int32_t start;
  std::int8_t values[kGroup];
};

/// One group of the outputs of a panel. A panel is in_features / kGroup of them, rounded up; what it is
/// filled up with is 0, and so are the scales behind the last output.
struct alignas(64) Int8Panel {
  std::uint8_t values[kGroup / kQuad][kPanel][kQuad];  ///< with 128 added
  float scales[kPanel];
};

/// The weight of row `in` of a panel for output `out` of its columns.
inline float weight_of(const Int8Panel* panel, std::int64_t in, std::int64_t out) {
  const Int8Panel& group = panel[in / kGroup];
  const std::int64_t k = in % kGroup;
  return static_cast<float>(group.values[k / kQuad][out][k % kQuad] - 128) * group.scales[out];
}

/// Adds x [rows, groups] times w [groups, columns] to result [rows, columns]; the columns of w begin with
/// `column` of its panel. Neighbouring rows of x lie x_stride groups apart, those of the result kPanel
/// elements.
using Int8Tile = void (*)(const Int8Row* x, std::int64_t x_stride, const Int8Panel* w, std::int64_t column,
                          std::int64_t groups, float* result);

/// Whether this processor has the instruction for it (AVX-512 VNNI).
bool has_int8_tile();

/// With six, four vectors of sums each, a prefill is no faster, and eight rows take longer.
constexpr int kInt8TileRows = 5;

/// The tile of that size: 1 to kInt8TileRows rows and 32 or 64 columns. Only where has_int8_tile().
Int8Tile int8_tile(int rows, int columns);

}  // namespace staircase
