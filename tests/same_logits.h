// Whether two passes of a model, in which the same tokens come together with others, agree.
#pragma once

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "tests/test_device.h"

namespace staircase {

/// To the bit on the CPU. A GPU has other kernels for other numbers of rows, which add in another order.
inline bool same_logits(std::span<const float> got, std::span<const float> want) {
  const float tolerance = tests_are_for_gpu() ? 1e-3f : 0.0f;
  return std::ranges::equal(got, want, [&](float a, float b) { return std::abs(a - b) <= tolerance; });
}

/// The same for what programs print: on a GPU the numbers with a point, log-probabilities, may differ a
/// little.
inline bool same_results(const nlohmann::json& got, const nlohmann::json& want) {
  if (!tests_are_for_gpu()) return got == want;
  const nlohmann::json all = got.flatten(), others = want.flatten();  // of positions and their contents
  if (all.size() != others.size()) return false;
  return std::ranges::all_of(all.items(), [&](const auto& one) {
    if (!others.contains(one.key())) return false;
    const nlohmann::json& other = others[one.key()];
    if (!one.value().is_number_float() || !other.is_number_float()) return one.value() == other;
    return std::abs(one.value().template get<double>() - other.template get<double>()) <= 1e-4;
  });
}

}  // namespace staircase
