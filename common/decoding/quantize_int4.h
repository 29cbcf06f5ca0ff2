// Weights in 4 bits: two integers per byte, with a 16-bit scale for each group.
#pragma once

#include "kernels/half.h"
#include "quantize.h"

namespace staircase {

/// A group of neighbouring inputs of one output: a weight is scale · (half of a byte - 8).
struct Int4Group {
  std::uint16_t scale;  ///< bfloat16
  std::size_t count;
  std::vector<std::uint8_t> halves;  ///< the lower half of a byte holds the first of two weights

  std::size_t bytes() const { return sizeof scale + halves.size(); }
};

/// Like quantize of step 70, with integers from -8 to 7: the weight furthest from 0 (the first of several)
/// becomes -8, whatever its sign.
inline std::vector<Int4Group> quantize_int4(std::span<const float> weights, std::size_t inputs,
                                            std::size_t size) {
  std::vector<Int4Group> groups;
  for (std::size_t i = 0; i < weights.size(); i += groups.back().count) {
    const auto part = weights.subspan(i, std::min(size, inputs - i % inputs));
    const float furthest = *std::ranges::max_element(part, {}, [](float weight) { return std::abs(weight); });
    Int4Group group{bfloat16_from_float32(furthest / -8.0f), part.size(), {}};
    const float scale = float32_from_bfloat16(group.scale), divisor = scale != 0.0f ? scale : 1.0f;
    group.halves.resize((part.size() + 1) / 2);
    for (std::size_t k = 0; k < part.size(); ++k)
      group.halves[k / 2] |= (std::clamp(std::lrint(part[k] / divisor), -8L, 7L) + 8) << (k % 2 * 4);
    groups.push_back(group);
  }
  return groups;
}

/// The weights that the groups represent.
inline std::vector<float> dequantize(std::span<const Int4Group> groups) {
  std::vector<float> weights;
  for (const auto& [scale, count, halves] : groups)
    for (std::size_t k = 0; k < count; ++k)
      weights.push_back(((halves[k / 2] >> (k % 2 * 4) & 15) - 8) * float32_from_bfloat16(scale));
  return weights;
}

}  // namespace staircase
