// Refuses options that cannot go together, before any work is done.
#pragma once

#include "arrivals.h"
#include "common/base/error.h"
#include "common/base/message.h"
#include "common/program/inputs.h"
#include "generate.h"
#include "paged_engine.h"

namespace staircase {

/// Throws UsageError for options that contradict each other, and warns of those that do nothing together.
inline void check(const RowOptions& options, const RunOptions& run) {
  if (options.length.min_new_tokens > options.stopping.max_new_tokens) {
    throw UsageError("--min-new-tokens is {}, but it must be at most {}, the --max-new-tokens",
                     options.length.min_new_tokens, options.stopping.max_new_tokens);
  }
  if (run.max_batch_size < run.num_return_sequences) {
    throw UsageError("--max-batch-size is {}, but it must be {} or more, the --num-return-sequences",
                     run.max_batch_size, run.num_return_sequences);
  }
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

/// Throws UsageError for what requests, if there are any, do not go with; warns of what only they use.
inline void check_requests(std::span<const Request> requests, const RunOptions& run,
                           const PrefillOptions& prefill, const PagedOptions& paged) {
  if (requests.empty() && paged.blocks) warn("--kv-blocks does nothing without --requests");
  if (requests.empty() && prefill.chunk) warn("--prefill-chunk does nothing without --requests");
  if (!requests.empty() && (run.num_return_sequences > 1 || !run.use_cache)) {
    throw UsageError("--requests goes with neither --num-return-sequences nor --no-use-cache");
  }
}

}  // namespace staircase
