// Compares an array with its expected values, and reports where it differs most.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace staircase {

/// The place of the largest difference. NaN where a number is wanted counts as infinitely far.
struct Difference {
  double largest = 0.0;
  std::size_t index = 0;
};

template <typename Want>
Difference largest_difference(std::span<const float> got, std::span<const Want> want) {
  Difference result;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double g = static_cast<double>(got[i]), w = static_cast<double>(want[i]);
    if (std::isnan(g) && std::isnan(w)) continue;
    double difference = g == w ? 0.0 : std::abs(g - w);
    if (std::isnan(difference)) difference = HUGE_VAL;
    if (difference > result.largest) result = {difference, i};
  }
  return result;
}

/// Empty when each element of `got`, [rows, columns], is at most `tolerance` from `want`; otherwise a
/// sentence: "block.3 [5, 17]: got 1.25, want 1.5, 312 % of the tolerance 1e-3".
template <typename Want>
std::string difference(std::string_view name, std::span<const float> got, std::span<const Want> want,
                       std::size_t columns, double tolerance) {
  if (got.size() != want.size()) {
    return fmt::format("{} has {} values, want {}", name, got.size(), want.size());
  }
  const Difference worst = largest_difference(got, want);
  if (worst.largest <= tolerance) return "";
  const std::string share = tolerance > 0.0 ? fmt::format("{:.0f} % of the tolerance {}",
                                                          100.0 * worst.largest / tolerance, tolerance)
                                            : std::string("where it must be equal");
  return fmt::format("{} [{}, {}]: got {}, want {}, {}", name, worst.index / columns, worst.index % columns,
                     got[worst.index], want[worst.index], share);
}

template <typename Got, typename Want>
std::string difference(std::string_view name, const Got& got, const Want& want, std::size_t columns,
                       double tolerance) {
  return difference(name, std::span<const float>(got), std::span<const typename Want::value_type>(want),
                    columns, tolerance);
}

}  // namespace staircase
