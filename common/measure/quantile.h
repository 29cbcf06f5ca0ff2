// Quantiles of measurements.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace staircase {

/// Returns the value that a `share` (0 to 1) of `values` does not exceed; `values` must not be empty.
/// Interpolates linearly between neighbouring values (Hyndman and Fan 1996, definition 7, as in NumPy).
inline double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place), above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], place - static_cast<double>(below));
}

}  // namespace staircase
