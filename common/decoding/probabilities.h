// Turns logits into probabilities, and makes the random number that a draw starts from.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "common/decoding/results.h"

namespace staircase {

/// A copy of a model's logits that options may change; the model's own stay intact.
inline std::vector<float> copy_of(std::span<const float> logits) {
  return {logits.begin(), logits.end()};
}

/// softmax(logits), [vocab_size]: p[i] = exp(logits[i]) / Σ exp(logits[j]), by kernels/cpu/softmax.cpp. A
/// token whose logit is -infinity has probability 0. Throws Error when no token is left or a logit is NaN or
/// +infinity.
std::vector<float> softmax(std::span<const float> logits);

/// The k-th largest value, 1 ≤ k ≤ values.size(); equal values count separately.
float kth_largest(std::span<const float> values, int k);

/// The tokens with a probability of at least `least`, by id.
std::vector<Candidate> likely_enough(std::span<const float> probabilities, float least);

/// The indices of the `count` largest values, or of all, in descending order; ties by the lowest index.
std::vector<int> highest(std::span<const float> values, std::int64_t count);

/// The `count` most likely tokens with their probabilities, in descending order; ties by the lowest id.
std::vector<Candidate> likeliest(std::span<const float> logits, int count);

/// KL(p ‖ q) = Σ p log(p / q) in nats (Kullback and Leibler 1951): 0 for equal distributions.
double kl_divergence(std::span<const float> p, std::span<const float> q);

/// A number from [0, 1), the same with every compiler: the distributions of the standard library differ.
double uniform(std::mt19937& generator);

}  // namespace staircase
