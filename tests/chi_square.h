// Are these counts likely, if the tokens were drawn with those probabilities? Pearson's chi-square test.
#pragma once

#include <cmath>
#include <limits>
#include <span>

namespace staircase {

/// The probability that a chi-square variable with `degrees` degrees of freedom is above `statistic`. It is
/// the regularised incomplete gamma function Q(degrees / 2, statistic / 2), by its series or its continued
/// fraction, whichever converges fast (Press et al., Numerical Recipes, section 6.2).
inline double chi_square_p(double statistic, int degrees) {
  const double a = degrees / 2.0, x = statistic / 2.0;
  if (!(x > 0.0)) return 1.0;
  const double scale = std::exp(a * std::log(x) - x - std::lgamma(a));
  if (x < a + 1.0) {
    double term = 1.0 / a, sum = term;
    for (double n = a + 1.0; term > sum * 1e-15; ++n) sum += term *= x / n;
    return 1.0 - scale * sum;
  }
  constexpr double kTiny = 1e-300;
  double b = x + 1.0 - a, c = 1.0 / kTiny, d = 1.0 / b, fraction = d, change = 0.0;
  for (int n = 1; std::abs(change - 1.0) > 1e-15 && n < 10000; ++n) {
    const double factor = n * (a - n);
    b += 2.0;
    d = factor * d + b;
    d = 1.0 / (std::abs(d) < kTiny ? kTiny : d);
    c = b + factor / c;
    c = std::abs(c) < kTiny ? kTiny : c;
    fraction *= change = c * d;
  }
  return scale * fraction;
}

/// The p-value of `counts`, one for each token, under `probabilities`: how often a correct sampler gives
/// counts that are as far off. Tokens that are expected fewer than 5 times share one bin; a token drawn
/// against a probability of 0 makes it 0.
inline double p_value(std::span<const int> counts, std::span<const float> probabilities) {
  double total = 0.0, mass = 0.0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0 && probabilities[i] == 0.0f) return 0.0;
    total += counts[i];
    mass += static_cast<double>(probabilities[i]);
  }
  double statistic = 0.0, rare_count = 0.0, rare_expected = 0.0;
  int bins = 0;
  const auto add = [&](double count, double expected) {
    statistic += (count - expected) * (count - expected) / expected;
    ++bins;
  };
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = total * static_cast<double>(probabilities[i]) / mass;
    if (expected >= 5.0) {
      add(counts[i], expected);
    } else {
      rare_count += counts[i];
      rare_expected += expected;
    }
  }
  if (rare_expected > 0.0) add(rare_count, rare_expected);
  return chi_square_p(statistic, bins - 1);
}

}  // namespace staircase
