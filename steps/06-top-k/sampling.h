// How a token is chosen from the logits.
#pragma once

#include <limits>
#include <optional>
#include <random>
#include <span>

#include "common/base/options.h"
#include "common/decoding/probabilities.h"
#include "kernels/device.h"

namespace staircase {

/// Below this temperature, only the most likely token is left.
constexpr float kGreedyTemperature = 1e-5f;

struct SamplingOptions {
  bool do_sample = false;
  unsigned seed = 0;  ///< seed of the random numbers
  float temperature = 1.0f;
  std::optional<int> top_k = {};
  int show_candidates = 0;
};

inline void add_options(OptionSink& sink, SamplingOptions& options) {
  sink.add("--do-sample", &options.do_sample, "sample each token instead of taking the most likely");
  sink.add("--seed", &options.seed, "seed of the random numbers");
  sink.add("--temperature", &options.temperature, "below 1: more predictable, above 1: more varied");
  sink.add("--top-k", &options.top_k, "keep the k most likely tokens");
  sink.add("--show-candidates", &options.show_candidates, "print the most likely tokens at each step");
  sink.warn_if([&options] { return options.temperature < kGreedyTemperature; },
               "a temperature near 0 is greedy decoding");
}

/// The logit of a token that cannot be chosen.
constexpr float kMasked = -std::numeric_limits<float>::infinity();

/// Divides the logits by the temperature (Ackley et al. 1985): below 1, the likely tokens become likelier;
/// above 1, the unlikely ones do.
inline void apply_temperature(std::span<float> logits, float temperature) {
  if (temperature < kGreedyTemperature) {
    const int best = argmax(logits);
    for (int i = 0; i < std::ssize(logits); ++i) {
      if (i != best) logits[i] = kMasked;
    }
    return;
  }
  // Only the differences between logits matter. With the largest at 0, none overflows except to -infinity.
  const float shift = temperature < 0.1f ? logits[argmax(logits)] : 0.0f;
  for (float& logit : logits) logit = (logit - shift) / temperature;
}

/// Keeps the k largest logits (Fan et al. 2018, section 5.4) and any others equal to the smallest of these.
inline void keep_top_k(std::span<float> logits, int k) {
  if (k < 1 || k >= std::ssize(logits)) return;
  const float smallest = kth_largest(logits, k);
  for (float& logit : logits) logit = logit < smallest ? kMasked : logit;
}

/// Applies the options to the raw logits of a model.
inline void process(std::span<float> logits, const SamplingOptions& options) {
  if (options.temperature != 1.0f) apply_temperature(logits, options.temperature);
  if (options.top_k) keep_top_k(logits, *options.top_k);
}

/// Draws an index with the given probabilities: a uniform number falls into the share of one of them.
inline int draw(std::span<const float> probabilities, std::mt19937& generator) {
  const double number = uniform(generator);
  double sum = 0.0;
  int last = 0;
  for (int i = 0; i < std::ssize(probabilities); ++i) {
    if (probabilities[i] == 0.0f) continue;
    sum += probabilities[i];
    last = i;
    if (number < sum) break;
  }
  return last;  // the sum may be a rounding error below 1
}

/// The next token: sampled, or the most likely one.
inline int choose(std::span<const float> logits, const SamplingOptions& options, std::mt19937& generator) {
  return options.do_sample ? draw(softmax(logits), generator) : argmax(logits);
}

}  // namespace staircase
