// Estimates how fast texts grow, and what one more token in a pass costs.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <functional>

namespace staircase {

/// What a pass costs and yields, from all passes so far. Each pass weighs 0.95 times as much as the next.
class PassRate {
 public:
  /// The time in milliseconds, from some moment on; tests replace this clock.
  std::function<double()> now = [] {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };

  void begin_pass() { start_ = now(); }

  /// Records a pass over `tokens` tokens in which all texts together grew by `grown` tokens.
  void end_pass(int tokens, int grown) {
    const double ms = now() - start_, n = tokens;
    const std::array<double, 6> terms = {1.0, n, static_cast<double>(grown), ms, n * n, n * ms};
    for (std::size_t i = 0; i < terms.size(); ++i) sums_[i] = 0.95 * sums_[i] + terms[i];
  }

  /// Milliseconds for one more token in a pass: the slope of the least-squares line. It is 0 while all passes
  /// had the same number of tokens, so the first drafts seem free and then reveal what drafts cost.
  double slope() const {
    const auto& [passes, tokens, grown, ms, squares, products] = sums_;
    const double spread = passes * squares - tokens * tokens;
    return spread > 1e-6 * passes * squares ? std::max(0.0, (passes * products - tokens * ms) / spread) : 0.0;
  }

  /// Whether one more draft after `before` others yields at least as many tokens per millisecond as the
  /// passes do. Each draft is right with probability `chance`, and the new one counts only if all are.
  bool pays(double chance, int before) const {
    const auto& [passes, tokens, grown, ms, squares, products] = sums_;
    return std::pow(chance, before + 1) * ms >= slope() * grown;
  }

 private:
  double start_ = 0.0;
  std::array<double, 6> sums_ = {};  // of the terms above
};

}  // namespace staircase
