// When a text ends.
#pragma once

#include "common/base/options.h"

namespace staircase {

struct StoppingOptions {
  int max_new_tokens = 100;
};

inline void add_options(OptionSink& sink, StoppingOptions& options) {
  sink.add("--max-new-tokens", &options.max_new_tokens, "maximum number of new tokens");
}

}  // namespace staircase
