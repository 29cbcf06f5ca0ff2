// How a token is chosen from the logits.
#pragma once

#include <limits>
#include <span>

#include "common/base/options.h"
#include "common/decoding/probabilities.h"
#include "kernels/device.h"

namespace staircase {

/// Below this temperature, only the most likely token is left.
constexpr float kGreedyTemperature = 1e-5f;

struct SamplingOptions {
  float temperature = 1.0f;
  int show_candidates = 0;
};

inline void add_options(OptionSink& sink, SamplingOptions& options) {
  sink.add("--temperature", &options.temperature, "below 1: more predictable, above 1: more varied");
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

/// Applies the options to the raw logits of a model.
inline void process(std::span<float> logits, const SamplingOptions& options) {
  if (options.temperature != 1.0f) apply_temperature(logits, options.temperature);
}

}  // namespace staircase
