// Draws a token from only the largest logits of a row: the token that sampling.h draws from all of them with
// the same seed, or none.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "common/decoding/probabilities.h"
#include "common/model/logits.h"
#include "sampling.h"

namespace staircase {

/// Bounds the relative difference between a probability, or a sum of them, and the one that softmax computes
/// from a whole row. Softmax adds at most 64 numbers in float32 before it continues in double. Its
/// exponentials and products are off by a few units in the last place.
constexpr double kSoftmaxError = (64 + 32) * static_cast<double>(std::numeric_limits<float>::epsilon());

/// Bounds of a sum over a part of the vocabulary.
struct SumRange {
  double least = 0.0, most = 0.0;
  bool of_none = true;
};

/// Bounds Σ exp((logit - largest logit) / t) over the logits that are not among the largest, where t is the
/// temperature. At t = 1, the sum of all gives it. Below 1, exp(x / t) = exp(x) · exp(x (1 / t - 1)), whose
/// second factor grows with x. Above 1, only the number of these logits and their maximum are known.
inline SumRange sum_of_others(const LargestLogits& largest, float temperature) {
  const double first = largest.values.front(), last = largest.values.back() - first, t = temperature;
  const auto others = static_cast<double>(largest.vocab_size - largest.values.size());
  if (others == 0.0) return {};
  if (t > 1.0) return {0.0, others * std::exp(last / t), false};
  const double all = std::exp(largest.log_sum - first), error = 2.0 * kSoftmaxError * all;
  double sum = all;
  for (const float value : largest.values) sum -= std::exp(value - first);
  return {t == 1.0 ? std::max(sum - error, 0.0) : 0.0,
          (std::max(sum, 0.0) + error) * std::exp(last * (1.0 / t - 1.0)), false};
}

/// How many of the largest logits form the nucleus that keep_top_p keeps, or nothing if that depends on
/// rounding or on the missing logits. exponentials[i] = exp(logits[i] - logits[0]).
inline std::optional<std::size_t> size_of_nucleus(std::span<const float> logits,
                                                  std::span<const double> exponentials, SumRange others,
                                                  float p, std::size_t vocab_size) {
  double sum = 0.0;
  for (const double exponential : exponentials) sum += exponential;
  const SumRange all{sum + others.least, sum + others.most};
  const double least = (1.0 - p) / static_cast<double>(vocab_size);  // keep_top_p first masks what is below
  sum = 0.0;
  for (std::size_t n = 1; n <= exponentials.size(); ++n) {
    const double own = exponentials[n - 1];
    sum += own;
    if (sum / all.least * (1.0 + kSoftmaxError) < p) continue;
    // The next logit must be small enough that its rounded probability is smaller too.
    const bool ends = n < logits.size() ? logits[n - 1] - logits[n] > 1e-5f : others.of_none;
    const bool reaches = sum / all.most * (1.0 - kSoftmaxError) >= p,
               counts = own / all.most * (1.0 - kSoftmaxError) > least;
    return ends && reaches && counts ? std::optional(n) : std::nullopt;
  }
  return {};
}

/// The token that process() and choose() would draw from the whole row with these options, which must not set
/// penalties, or nothing if the largest logits do not decide it. Advances the generator only for a token.
inline std::optional<int> draw_from_largest(const LargestLogits& largest, const SamplingOptions& options,
                                            std::mt19937& generator) {
  std::vector<float> logits = copy_of(largest.values);  // in descending order
  if (options.temperature != 1.0f) apply_temperature(logits, options.temperature);
  SumRange others = sum_of_others(largest, options.temperature);
  if (options.top_k && static_cast<std::size_t>(*options.top_k) < largest.vocab_size) {
    if (static_cast<std::size_t>(*options.top_k) >= logits.size()) return {};
    const float smallest = logits[static_cast<std::size_t>(*options.top_k) - 1];
    if (!others.of_none && logits.back() == smallest) return {};  // missing logits may be equal to it
    while (logits.back() < smallest) logits.pop_back();
    others = {};
  }
  std::vector<double> exponentials;
  for (const float logit : logits)
    exponentials.push_back(std::exp(static_cast<double>(logit - logits.front())));
  if (options.top_p && *options.top_p < 1.0f) {
    const auto size = size_of_nucleus(logits, exponentials, others, *options.top_p, largest.vocab_size);
    if (!size) return {};
    exponentials.resize(*size);
  } else if (!others.of_none) {
    return {};
  }

  std::vector<std::pair<int, double>> kept;  // by token id, the order of draw()
  double sum = 0.0;
  for (std::size_t i = 0; i < exponentials.size(); ++i) {
    kept.emplace_back(largest.tokens[i], exponentials[i]);
    sum += exponentials[i];
  }
  std::ranges::sort(kept);
  std::mt19937 moved = generator;
  const double number = uniform(moved);
  double up_to = 0.0;
  for (const auto& [token, exponential] : kept) {
    up_to += exponential / sum;
    if (!(number < up_to + kSoftmaxError)) continue;
    if (number > up_to - kSoftmaxError) return {};  // rounded differently, it may be the next one
    generator = moved;
    return token;
  }
  return {};
}

}  // namespace staircase
