// Refuses options that cannot go together, before any work is done.
#pragma once

#include "common/base/error.h"
#include "common/base/message.h"
#include "generate.h"

namespace staircase {

/// Throws UsageError for options that contradict each other, and warns of those that do nothing together.
inline void check(const TextOptions& options, const RunOptions& run) {
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

}  // namespace staircase
