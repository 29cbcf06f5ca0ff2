// How a token is chosen from the logits.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "common/base/options.h"
#include "common/decoding/probabilities.h"
#include "kernels/device.h"

namespace staircase {

/// Below this temperature, only the most likely token is left.
constexpr float kGreedyTemperature = 1e-5f;

struct SamplingOptions {
  bool do_sample = false;
  unsigned seed = 0;  ///< seed of the random numbers
  float presence_penalty = 0.0f;
  float temperature = 1.0f;
  std::optional<int> top_k = {};
  std::optional<float> top_p = {};
  int show_candidates = 0;
};

/// Whether an option changes the distribution that tokens are drawn from; the most likely token stays the
/// same.
inline bool reshapes(const SamplingOptions& options) {
  return options.temperature != 1.0f || options.top_k || options.top_p;
}

inline void add_options(OptionSink& sink, SamplingOptions& options) {
  sink.add("--do-sample", &options.do_sample, "sample each token instead of taking the most likely");
  sink.add("--seed", &options.seed, "seed of the random numbers", at_least(0));
  sink.add("--presence-penalty", &options.presence_penalty,
           "subtract from the logit of each token that has occurred", between(-2, 2));
  sink.add("--temperature", &options.temperature, "below 1: more predictable, above 1: more varied",
           at_least(0));
  sink.add("--top-k", &options.top_k, "keep the k most likely tokens", at_least(1));
  sink.add("--top-p", &options.top_p, "keep the smallest set of tokens that reaches this probability",
           above_up_to(0, 1));
  sink.add("--show-candidates", &options.show_candidates, "print the most likely tokens at each step",
           at_least(0));
  sink.warn_if([&options] { return options.do_sample && options.temperature < kGreedyTemperature; },
               "a temperature near 0 is greedy decoding");
  sink.warn_if([&options] { return !options.do_sample && options.show_candidates == 0 && reshapes(options); },
               "--temperature, --top-k and --top-p do nothing without --do-sample");
}

/// The logit of a token that cannot be chosen.
constexpr float kMasked = -std::numeric_limits<float>::infinity();

/// Subtracts the penalty from the logit of each token that occurs in `tokens`, once (OpenAI's API reference,
/// "Frequency and presence penalties"). logits [vocab_size].
inline void apply_presence_penalty(std::span<float> logits, std::span<const int> tokens, float penalty) {
  std::vector<bool> seen(logits.size());
  for (const int token : tokens) {
    if (!seen[token]) logits[token] -= penalty;
    seen[token] = true;
  }
}

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

/// Keeps the nucleus (Holtzman et al. 2020, section 3.1): the smallest set of most likely tokens whose
/// probabilities reach p. The token that crosses p belongs to it; among ties at the border, the lowest ids
/// do.
inline void keep_top_p(std::span<float> logits, float p) {
  if (p >= 1.0f) return;
  const std::vector<float> probabilities = softmax(logits);
  // All tokens below (1 - p) / vocab_size together weigh less than 1 - p: the others reach p without them.
  const float least = (1.0f - p) / static_cast<float>(logits.size());
  for (int i = 0; i < std::ssize(logits); ++i) logits[i] = probabilities[i] < least ? kMasked : logits[i];
  std::vector<Candidate> rest = likely_enough(probabilities, least);
  const auto less_likely = [](const Candidate& a, const Candidate& b) {
    return a.probability != b.probability ? a.probability < b.probability : a.token_id > b.token_id;
  };
  // A heap returns the most likely tokens first; the loop stops at p, and the rest stays unsorted.
  std::ranges::make_heap(rest, less_likely);
  for (double sum = 0.0; sum < p && !rest.empty(); rest.pop_back()) {
    std::ranges::pop_heap(rest, less_likely);
    sum += rest.back().probability;
  }
  for (const Candidate& candidate : rest) logits[candidate.token_id] = kMasked;
}

/// Applies the options to the raw logits of a model; `tokens` is the text so far.
inline void process(std::span<float> logits, std::span<const int> tokens, const SamplingOptions& options) {
  if (options.presence_penalty != 0.0f) apply_presence_penalty(logits, tokens, options.presence_penalty);
  if (options.temperature != 1.0f) apply_temperature(logits, options.temperature);
  if (options.top_k) keep_top_k(logits, *options.top_k);
  if (options.top_p) keep_top_p(logits, *options.top_p);
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
