// What a window costs on a long text, and what its first tokens are worth (Xiao et al. 2023, section 3).
#pragma once

#include <cmath>
#include <numeric>

#include "common/base/error.h"
#include "common/base/message.h"
#include "common/base/options.h"
#include "common/decoding/probabilities.h"
#include "common/measure/plot.h"
#include "sink_cache.h"

namespace staircase {

struct StreamingOptions {
  std::string file = {};  ///< file for the plot; empty: no comparison
  int window = 256;       ///< positions that the cache keeps
  int sinks = 4;          ///< how many of them hold the first tokens
};

inline void add_options(OptionSink& sink, StreamingOptions& options) {
  sink.add("--streaming", Path{&options.file},
           "score the prompt with three caches and plot the losses to this SVG file");
  sink.add("--window", &options.window, "positions that a cache keeps", at_least(2));
  sink.add("--sinks", &options.sinks, "first tokens of the text that stay in the window", at_least(1));
  sink.refuse_if([&options] { return options.sinks >= options.window; },
                 "--sinks must be less than --window: the newest tokens need some positions");
}

/// The loss -log p of each token but the first, in nats, with a cache that keeps `window` positions: the
/// first `sinks` tokens and the newest ones.
inline std::vector<double> losses(Model& model, std::span<const int> tokens, int window, int sinks) {
  SinkCache cache(model, sinks);
  std::vector<double> found;
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    if (cache.length(0) == window) cache.slide(0, 1);
    const std::vector<float> p = softmax(model.next_logits(tokens.subspan(i, 1), cache));
    found.push_back(-std::log(p[tokens[i + 1]]));
  }
  return found;
}

inline double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Scores the end of the text, as much as the context holds, with all positions, with a window, and with a
/// window and sinks. Prints the perplexity of the tokens beyond the window, and plots the losses.
inline void compare_windows(Model& model, std::span<const int> tokens, const StreamingOptions& options) {
  check_writable(options.file);
  const int context = model.config().n_positions, window = options.window, sinks = options.sinks;
  tokens = tokens.last(std::min(tokens.size(), static_cast<std::size_t>(context)));
  if (std::ssize(tokens) < window + 2)
    throw Error("a text of {} tokens is too short for a window of {}", tokens.size(), window);
  const struct {
    std::string name;
    int window, sinks;
  } caches[] = {{"all positions", context, 0},
                {fmt::format("the newest {}", window), window, 0},
                {fmt::format("the first {}, the newest {}", sinks, window - sinks), window, sinks}};
  Plot plot{"What a window costs", "position", "loss, nats"};
  say(fmt::format("perplexity of the {} tokens beyond the window", tokens.size() - window - 1));
  for (const auto& cache : caches) {
    const std::vector<double> loss = losses(model, tokens, cache.window, cache.sinks);
    say(fmt::format("  {:<28}{:.2f}", cache.name, std::exp(mean(std::span(loss).subspan(window)))));
    plot.series.push_back({cache.name, {}});
    const std::size_t step = std::max<std::size_t>(4, loss.size() / 48);  // tokens per point
    for (std::size_t i = 0; i + step <= loss.size(); i += step)
      plot.series.back().points.push_back({i + step / 2.0, mean(std::span(loss).subspan(i, step))});
  }
  write_svg(options.file, plot);
}

}  // namespace staircase
