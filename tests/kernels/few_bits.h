// Rounding to 8 and 4 bits, written once more from its definition (Device::load_weight).
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "tests/kernels/kernel_test.h"

namespace staircase {

constexpr DType kFewBits[] = {DType::kInt8, DType::kInt4};

inline std::size_t group_of(DType dtype) {
  return static_cast<std::size_t>(dtype == DType::kInt8 ? kGroup : kInt4Group);
}

/// A group as it comes back from 8 bits.
inline void round_to_int8(std::span<float> values) {
  float largest = 0.0f;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  const float scale = largest / 127.0f;
  for (float& value : values) {
    value = scale == 0.0f ? 0.0f : std::clamp(std::nearbyint(value / scale), -127.0f, 127.0f) * scale;
  }
}

/// A group as it comes back from 4 bits.
inline void round_to_int4(std::span<float> values) {
  float furthest = 0.0f;
  for (const float value : values) furthest = std::abs(value) > std::abs(furthest) ? value : furthest;
  const float scale = float32_from_bfloat16(bfloat16_from_float32(furthest / -8.0f));
  for (float& value : values) {
    value = scale == 0.0f ? 0.0f : std::clamp(std::nearbyint(value / scale), -8.0f, 7.0f) * scale;
  }
}

/// Rows of `depth` values converted back from that type, or as rows of x for weights of that type, which are
/// in 8 bits.
inline Values rounded(Values rows, std::size_t depth, DType dtype, bool x = false) {
  for (std::size_t row = 0; row < rows.size(); row += depth) {
    for (std::size_t first = 0; first < depth; first += group_of(dtype)) {
      const std::span<float> values(rows.data() + row + first, std::min(group_of(dtype), depth - first));
      x || dtype == DType::kInt8 ? round_to_int8(values) : round_to_int4(values);
    }
  }
  return rows;
}

/// values [rows, columns], transposed.
inline Values turned(const Values& values, std::size_t columns) {
  const std::size_t rows = values.size() / columns;
  Values result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) result[i % columns * rows + i / columns] = values[i];
  return result;
}

}  // namespace staircase
