// Whether two passes of a model, in which the same tokens come together with others, agree.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "tests/test_device.h"

namespace staircase {

/// To the bit on the CPU. A GPU has other kernels for other numbers of rows, which add in another order.
inline bool same_logits(std::span<const float> got, std::span<const float> want) {
  const float tolerance = tests_are_for_gpu() ? 1e-3f : 0.0f;
  return std::ranges::equal(got, want, [&](float a, float b) { return std::abs(a - b) <= tolerance; });
}

}  // namespace staircase
