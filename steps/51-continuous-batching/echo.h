// Prints the prompts themselves.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "common/base/message.h"
#include "common/base/options.h"
#include "common/program/output.h"
#include "scoring.h"

namespace staircase {

struct EchoOptions {
  bool echo = false;
};

inline void add_options(OptionSink& sink, EchoOptions& options) {
  sink.add("--echo", &options.echo, "also print the prompt, with its log-probabilities and perplexity");
}

/// Prints the prompts, if requested, with the `count` most likely tokens at the position of each token.
inline void echo(Model& model, const Prompts& prompts, const EchoOptions& options, int count,
                 Output& output) {
  if (!options.echo) return;
  for (int i = 0; i < std::ssize(prompts); ++i) {
    const std::vector<Token> tokens = score(model, prompts[i], count);
    const std::optional<double> value = perplexity(tokens);
    output.echo(i, tokens, value);
    if (value) say(fmt::format("perplexity of prompt {}: {:.4f}", i + 1, *value));
  }
}

}  // namespace staircase
