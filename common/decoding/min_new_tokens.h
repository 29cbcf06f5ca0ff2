// Sets a minimum length: until a text reaches it, the end-of-text token cannot be chosen.
#pragma once

#include <span>

#include "common/base/options.h"
#include "common/model/config.h"
#include "sampling.h"
#include "stopping.h"

namespace staircase {

struct MinLengthOptions {
  int min_new_tokens = 0;
};

inline void add_options(OptionSink& sink, MinLengthOptions& options, const StoppingOptions& stopping) {
  sink.add("--min-new-tokens", &options.min_new_tokens,
           "minimum number of tokens before the end-of-text token", at_least(0));
  sink.require_at_most({"--min-new-tokens", &options.min_new_tokens},
                       {"--max-new-tokens", &stopping.max_new_tokens});
}

/// Masks the end-of-text tokens if a text with `count` new tokens is too short; `logits` is [vocab_size].
inline void forbid_early_end(std::span<float> logits, int count, const EndTokens& ends,
                             const MinLengthOptions& options) {
  if (count >= options.min_new_tokens) return;
  for (const int end : ends) logits[end] = kMasked;
}

}  // namespace staircase
