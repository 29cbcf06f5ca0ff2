// Refuses impossible options before any work is done.
#pragma once

#include <cmath>
#include <string_view>

#include "common/base/error.h"
#include "common/base/message.h"
#include "generate.h"

namespace staircase {

/// Throws UsageError that names the option, its value and the range, unless `valid`.
template <typename T>
void require(bool valid, std::string_view option, T value, std::string_view range) {
  if (!valid) throw UsageError("{} is {}, but it must be {}", option, value, range);
}

/// Throws UsageError for an impossible value, and warns of options that do nothing together.
inline void check(const GenerateOptions& options) {
  const SamplingOptions& sampling = options.sampling;
  require(options.max_new_tokens >= 1, "--max-new-tokens", options.max_new_tokens, "1 or more");
  require(options.num_return_sequences >= 1, "--num-return-sequences", options.num_return_sequences,
          "1 or more");
  require(options.show_candidates >= 0, "--show-candidates", options.show_candidates, "0 or more");
  require(std::abs(sampling.presence_penalty) <= 2.0f, "--presence-penalty", sampling.presence_penalty,
          "between -2 and 2");
  require(std::isfinite(sampling.temperature) && sampling.temperature >= 0.0f, "--temperature",
          sampling.temperature, "a number of 0 or more");
  if (sampling.top_k) require(*sampling.top_k >= 1, "--top-k", *sampling.top_k, "1 or more");
  if (sampling.top_p) {
    require(*sampling.top_p > 0.0f && *sampling.top_p <= 1.0f, "--top-p", *sampling.top_p,
            "above 0 and at most 1");
  }

  if (sampling.do_sample) {
    if (sampling.temperature < kGreedyTemperature) warn("a temperature near 0 is greedy decoding");
    return;
  }
  if (options.num_return_sequences > 1) {
    throw UsageError("--num-return-sequences {} needs --do-sample: without it all of them would be the same",
                     options.num_return_sequences);
  }
  if (options.show_candidates == 0 && (sampling.temperature != 1.0f || sampling.top_k || sampling.top_p)) {
    warn("without --do-sample the likeliest token is taken, whatever --temperature, --top-k and --top-p are");
  }
}

}  // namespace staircase
