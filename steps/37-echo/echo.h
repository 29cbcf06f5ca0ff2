// Prints the prompts themselves.
#pragma once

#include <optional>
#include <vector>

#include "common/base/options.h"
#include "common/program/output.h"
#include "scoring.h"

namespace staircase {

struct EchoOptions {
  bool echo = false;
};

inline void add_options(OptionSink& sink, EchoOptions& options) {
  sink.add("--echo", &options.echo, "also print the prompt, with its log-probabilities");
}

/// Prints the prompts, if requested, with the `count` most likely tokens at the position of each token.
inline void echo(Model& model, const Prompts& prompts, const EchoOptions& options, int count,
                 Output& output) {
  if (!options.echo) return;
  for (int i = 0; i < std::ssize(prompts); ++i)
    output.echo(i, score(model, prompts[i], count), std::nullopt);  // no perplexity yet
}

}  // namespace staircase
