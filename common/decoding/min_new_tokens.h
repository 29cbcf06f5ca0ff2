// The least length of a text: before it, the end-of-text token cannot be chosen.
#pragma once

#include <span>

#include "common/base/options.h"
#include "common/model/config.h"
#include "sampling.h"

namespace staircase {

struct MinLengthOptions {
  int min_new_tokens = 0;
};

inline void add_options(OptionSink& sink, MinLengthOptions& options) {
  sink.add("--min-new-tokens", &options.min_new_tokens,
           "minimum number of tokens before the end-of-text token", at_least(0));
}

/// Masks the end-of-text tokens in a text that has only `count` new tokens; `scores` is [vocab_size].
inline void forbid_early_end(std::span<float> scores, int count, const EndTokens& ends,
                             const MinLengthOptions& options) {
  if (count >= options.min_new_tokens) return;
  for (const int end : ends) scores[end] = kMasked;
}

}  // namespace staircase
