// A quantile of several measurements.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace staircase {

/// The value that the share (0 to 1) of `values`, which must not be empty, is not above. Between two of them
/// it is on the line from one to the other (Hyndman and Fan 1996, definition 7, as NumPy has it).
inline double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place), above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], place - static_cast<double>(below));
}

}  // namespace staircase
