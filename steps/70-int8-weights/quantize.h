// Weights in 8 bits: integers, with a scale for each group.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace staircase {

/// A group of neighbouring inputs of one output: a weight is scale · value.
struct Int8Group {
  float scale;
  std::vector<std::int8_t> values;

  std::size_t bytes() const { return sizeof scale + values.size(); }
};

/// Weights [outputs, inputs] in groups of `size` inputs; the last group of an output may be shorter. The
/// scale is the largest magnitude of a group / 127, and a value is the integer nearest to weight / scale.
inline std::vector<Int8Group> quantize(std::span<const float> weights, std::size_t inputs, std::size_t size) {
  std::vector<Int8Group> groups;
  for (std::size_t i = 0; i < weights.size(); i += groups.back().values.size()) {
    const auto part = weights.subspan(i, std::min(size, inputs - i % inputs));
    const auto [least, most] = std::ranges::minmax(part);
    const float scale = std::max(-least, most) / 127.0f, divisor = scale > 0.0f ? scale : 1.0f;
    groups.push_back({scale, {}});
    for (const float weight : part)
      groups.back().values.push_back(std::clamp(std::nearbyint(weight / divisor), -127.0f, 127.0f));
  }
  return groups;
}

/// The weights that the groups represent.
inline std::vector<float> dequantize(std::span<const Int8Group> groups) {
  std::vector<float> weights;
  for (const auto& [scale, values] : groups)
    for (const std::int8_t value : values) weights.push_back(static_cast<float>(value) * scale);
  return weights;
}

}  // namespace staircase
