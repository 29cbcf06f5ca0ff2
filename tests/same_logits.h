// Whether two passes of a model, in which the same tokens come together with others, agree.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "tests/test_device.h"

namespace staircase {

/// Empty, or the first logit that is not within `tolerance` of the wanted one.
inline std::string logit_difference(std::span<const float> got, std::span<const float> want,
                                    float tolerance = 0.0f) {
  if (got.size() != want.size()) return fmt::format("got {} logits, want {}", got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!(std::abs(got[i] - want[i]) <= tolerance))
      return fmt::format("logit {} of {}: got {}, want {}", i, got.size(), got[i], want[i]);
  }
  return "";
}

/// The same: to the bit on the CPU. A GPU has other kernels for other numbers of rows, which add in another
/// order.
inline std::string other_logits(std::span<const float> got, std::span<const float> want) {
  return logit_difference(got, want, tests_are_for_gpu() ? 1e-3f : 0.0f);
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
