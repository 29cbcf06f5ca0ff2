// Refuses options that cannot go together, before any work is done.
#pragma once

#include "common/base/error.h"
#include "common/base/message.h"
#include "common/program/inputs.h"
#include "generate.h"

namespace staircase {

/// Throws UsageError for options that contradict each other, and warns of those that do nothing together.
inline void check(const TextOptions& options, const RunOptions& run) {
  if (options.overflow.refill && options.overflow.on_overflow == Overflow::kSlide) {
    warn("--refill does nothing without --on-overflow recompute");
  }
  const SamplingOptions& sampling = options.sampling;
  if (sampling.do_sample) {
    if (sampling.temperature < kGreedyTemperature) warn("a temperature near 0 is greedy decoding");
    return;
  }
  if (run.num_return_sequences > 1) {
    throw UsageError("--num-return-sequences {} needs --do-sample: without it all of them would be the same",
                     run.num_return_sequences);
  }
  if (sampling.show_candidates == 0 && (sampling.temperature != 1.0f || sampling.top_k || sampling.top_p)) {
    warn("without --do-sample the likeliest token is taken, whatever --temperature, --top-k and --top-p are");
  }
}

/// Throws UsageError for what does not go with the model; warns of a prompt that it cannot see whole.
inline void check(const TextOptions& options, const Prompts& prompts, const ModelConfig& config) {
  if (options.overflow.refill.value_or(1) > config.n_positions) {
    throw UsageError("--refill is {}, but it must be at most the model's {} positions",
                     *options.overflow.refill, config.n_positions);
  }
  warn_of_long_prompts(prompts, config.n_positions);
}

}  // namespace staircase
