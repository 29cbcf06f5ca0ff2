// Log-probabilities: what the model itself computes for a token, before any option changes it.
#pragma once

#include <cmath>
#include <optional>
#include <span>
#include <vector>

#include "common/base/options.h"
#include "common/decoding/probabilities.h"
#include "common/decoding/results.h"
#include "kernels/device.h"

namespace staircase {

struct LogprobOptions {
  std::optional<int> count = {};  ///< number of most likely tokens to print with log-probabilities
};

inline void add_options(OptionSink& sink, LogprobOptions& options) {
  sink.add("--logprobs", &options.count, "print the log-probability of each token and of the N most likely",
           between(0, 20));
}

/// ln softmax(logits), [vocab_size]: logits[i] - max - ln Σ exp(logits[j] - max). With the largest logit at
/// 0, no exponential overflows, and no logarithm is taken of a probability that was rounded to 0.
inline std::vector<float> log_softmax(std::span<const float> logits) {
  const int best = argmax(logits);
  const double log_sum = -std::log(softmax(logits)[best]);  // its probability is exp(0) / Σ
  std::vector<float> logprobs(logits.begin(), logits.end());
  for (float& logprob : logprobs) logprob = static_cast<float>(logprob - logits[best] - log_sum);
  return logprobs;
}

/// Picks the log-probability of `token` and of the `count` most likely tokens from `logprobs`, [vocab_size];
/// ties go to the lowest id.
inline Logprobs logprobs_of(int token, std::span<const float> logprobs, int count) {
  Logprobs result{logprobs[token]};
  for (const int id : highest(logprobs, count)) result.likeliest.push_back({id, logprobs[id]});
  return result;
}

}  // namespace staircase
