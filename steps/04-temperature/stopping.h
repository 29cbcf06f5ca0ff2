// When a text ends.
#pragma once

#include <optional>

#include "common/base/options.h"
#include "common/decoding/results.h"
#include "common/model/config.h"

namespace staircase {

struct StoppingOptions {
  int max_new_tokens = 100;
  bool ignore_eos = false;
};

inline void add_options(OptionSink& sink, StoppingOptions& options) {
  sink.add("--max-new-tokens", &options.max_new_tokens, "maximum number of new tokens");
  sink.add("--ignore-eos", &options.ignore_eos, "continue past the end-of-text token");
}

/// Whether a text ends with `token`, its `count`-th new one, and why.
inline std::optional<FinishReason> finish_reason(int token, int count, const EndTokens& ends,
                                                 const StoppingOptions& options) {
  if (ends.contains(token) && !options.ignore_eos) return FinishReason::kEos;
  if (count == options.max_new_tokens) return FinishReason::kLength;
  return std::nullopt;
}

}  // namespace staircase
