// Draws a token from the largest logits of a row, as sampling.h does from all of them: the same token for the
// same seed, or none.
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

/// By how much a probability or a sum of them may differ, relative to it, from the one that softmax computes
/// from a whole row. That adds at most 64 numbers in float32 before it goes on in double, and takes
/// exponentials and products that are wrong by a few units in the last place.
constexpr double kSoftmaxError = (64 + 32) * static_cast<double>(std::numeric_limits<float>::epsilon());

/// Between which numbers a sum over some of the vocabulary lies.
struct SumRange {
  double least = 0.0, most = 0.0;
  bool of_none = true;
};

/// Σ exp((logit - largest logit) / temperature) over the logits that are not among the largest. Without a
/// temperature, the sum of all tells. With one below 1, each of them has exp(x / t) = exp(x) · exp(x (1 / t -
/// 1)), where the second factor is largest for the largest x. Above 1, nothing is known but their number.
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

/// How many of the largest logits, in their order, are the nucleus that keep_top_p keeps, or nothing if that
/// depends on rounding or on the logits that are not there. exponentials[i] = exp(logits[i] - logits[0]).
inline std::optional<std::size_t> size_of_nucleus(std::span<const float> logits,
                                                  std::span<const double> exponentials, SumRange others,
                                                  float p, std::size_t vocab_size) {
  double sum = 0.0;
  for (const double exponential : exponentials) sum += exponential;
  const SumRange all{sum + others.least, sum + others.most};
  const double least = (1.0 - p) / static_cast<double>(vocab_size);  // which keep_top_p masks first
  sum = 0.0;
  for (std::size_t n = 1; n <= exponentials.size(); ++n) {
    const double own = exponentials[n - 1];
    sum += own;
    if (sum / all.least * (1.0 + kSoftmaxError) < p) continue;
    // The next logit must be so much smaller that its probability is, too.
    const bool ends = n < logits.size() ? logits[n - 1] - logits[n] > 1e-5f : others.of_none;
    const bool reaches = sum / all.most * (1.0 - kSoftmaxError) >= p,
               counts = own / all.most * (1.0 - kSoftmaxError) > least;
    return ends && reaches && counts ? std::optional(n) : std::nullopt;
  }
  return {};
}

/// The token that process() and choose() draw from the whole row under these options, of which the penalties
/// are unset, or nothing if the largest logits do not decide it. The generator moves only for a token.
inline std::optional<int> draw_from_largest(const LargestLogits& largest, const SamplingOptions& options,
                                            std::mt19937& generator) {
  std::vector<float> logits = copy_of(largest.values);  // falling
  if (options.temperature != 1.0f) apply_temperature(logits, options.temperature);
  SumRange others = sum_of_others(largest, options.temperature);
  if (options.top_k && static_cast<std::size_t>(*options.top_k) < largest.vocab_size) {
    if (static_cast<std::size_t>(*options.top_k) >= logits.size()) return {};
    const float smallest = logits[static_cast<std::size_t>(*options.top_k) - 1];
    if (!others.of_none && logits.back() == smallest) return {};  // others may be equal, too
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

  std::vector<std::pair<int, double>> kept;  // by token, as draw() goes through them
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
    if (number > up_to - kSoftmaxError) return {};  // with sums rounded otherwise, it may be the next one
    generator = moved;
    return token;
  }
  return {};
}

}  // namespace staircase
