// Numbers in fewer than 8 bits: whole steps above the smallest number of a group.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

namespace staircase {

/// Heads [n, head_size], with each number rounded to one of 2^bits levels. The lowest level is the smallest
/// number of its group of `size` neighbours, the highest is the largest, and the steps between are equal.
inline std::vector<float> on_levels(std::span<const float> heads, std::size_t head_size, std::size_t size,
                                    int bits) {
  std::vector<float> rounded;
  for (std::size_t i = 0; i < heads.size(); i = rounded.size()) {
    const auto group = heads.subspan(i, std::min(size, head_size - i % head_size));
    const auto [least, largest] = std::ranges::minmax(group);
    const float step = (largest - least) / static_cast<float>((1 << bits) - 1);
    for (const float number : group)
      rounded.push_back(step > 0.0f ? least + std::nearbyint((number - least) / step) * step : number);
  }
  return rounded;
}

}  // namespace staircase
