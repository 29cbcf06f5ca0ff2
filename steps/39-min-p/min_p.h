// Keeps the tokens that are likely enough compared with the most likely one.
#pragma once

#include <cmath>
#include <optional>
#include <span>

#include "common/base/options.h"
#include "sampling.h"

namespace staircase {

struct MinPOptions {
  std::optional<float> min_p = {};
};

inline void add_options(OptionSink& sink, MinPOptions& options, const SamplingOptions& sampling) {
  sink.add("--min-p", &options.min_p, "keep tokens with at least this share of the highest probability",
           between(0, 1));
  sink.warn_if([&options, &sampling] { return options.min_p && !sampling.do_sample; },
               "--min-p does nothing without --do-sample");
}

/// Masks each token whose probability is below `min_p` times the highest one (Nguyen et al. 2024, section 3).
/// The ratio of two probabilities is exp of the difference of their logits, so no softmax is needed.
inline void keep_min_p(std::span<float> logits, float min_p) {
  const float least = logits[argmax(logits)] + std::log(min_p);  // -infinity for 0, so all tokens stay
  for (float& logit : logits) logit = logit < least ? kMasked : logit;
}

}  // namespace staircase
