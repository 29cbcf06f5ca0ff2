// The true cost of sliding: the same text continued by sliding and by recomputing.
#pragma once

#include <cmath>
#include <numeric>

#include "common/base/error.h"
#include "common/base/message.h"
#include "common/measure/plot.h"
#include "common/program/output.h"
#include "generate.h"

namespace staircase {

struct DriftOptions {
  std::string file = {};  ///< file for the plot; empty: no comparison
};

inline void add_options(OptionSink& sink, DriftOptions& options, const RunOptions& run) {
  sink.add("--drift", Path{&options.file}, "compare both rules and plot the difference to this SVG file");
  sink.refuse_if(
      [&options, &run] { return !options.file.empty() && (run.num_return_sequences > 1 || !run.use_cache); },
      "--drift compares two texts with a cache: it cannot be combined with --num-return-sequences or "
      "--no-use-cache");
}

/// For each token beyond the context, the divergence of the distribution after it from the exact window's,
/// with a cache in which the options make room.
inline std::vector<double> drift(Model& model, std::span<const int> tokens, const OverflowOptions& options) {
  const auto context = static_cast<std::size_t>(model.config().n_positions);
  std::vector<double> divergences;
  if (tokens.size() <= context) return divergences;
  StaticKvCache cache(model);
  model.next_logits(tokens.first(context), cache);
  for (std::size_t end = context + 1; end <= tokens.size(); ++end) {
    const std::span<const int> window = tokens.subspan(end - context, context);
    const std::vector<float> exact = softmax(model.next_logits(window));
    const std::span<const int> fed = make_room(window.last(1), window, cache, 0, options);
    divergences.push_back(kl_divergence(exact, softmax(model.next_logits(fed, cache))));
  }
  return divergences;
}

/// Continues the prompt under both rules, prints where the texts diverge and how far each rule is from the
/// exact window, and plots that.
inline void compare_overflow(Model& model, const std::vector<int>& prompt, TextOptions options,
                             const std::string& file, Output& output) {
  check_writable(file);
  const int context = model.config().n_positions;
  output.expect(2);
  std::vector<std::vector<int>> texts;
  Plot plot{"KL divergence from the exact window", "tokens beyond the context", "nats"};
  std::string report;
  for (const Overflow rule : {Overflow::kSlide, Overflow::kRecompute}) {
    options.overflow.on_overflow = rule;
    std::mt19937 generator(options.sampling.seed);
    StaticKvCache cache(model);
    const Generation text = generate(model, prompt, options, cache, generator, output.begin());
    output.finish(text.finish_reason, cache.use());
    texts.push_back(text.tokens);

    // The cache of a cropped prompt began with the last tokens that fit.
    const std::size_t cropped = std::max<std::ptrdiff_t>(0, std::ssize(prompt) - context);
    const std::vector<double> divergences =
        drift(model, std::span(text.tokens).subspan(cropped), options.overflow);
    if (divergences.empty()) continue;
    const char* const name = rule == Overflow::kSlide ? "slide" : "recompute";
    report += fmt::format("\n{:<10} KL divergence {:.4f} on average, {:.4f} at most, over {} tokens", name,
                          std::accumulate(divergences.begin(), divergences.end(), 0.0) / divergences.size(),
                          std::ranges::max(divergences), divergences.size());
    plot.series.push_back({name, {}});
    for (const double divergence : divergences)
      plot.series.back().points.push_back({plot.series.back().points.size() + 1.0, divergence});
  }
  if (plot.series.empty())
    throw Error("the text ended within the context of {} tokens: nothing to compare", context);
  const auto parting = std::ranges::mismatch(texts[0], texts[1]).in1 - texts[0].begin();
  say("\n[1] slide, [2] recompute: " +
      (parting == std::ssize(texts[0]) ? "the same text"
                                       : fmt::format("the texts diverge at token {}", parting + 1)) +
      report);
  write_svg(file, plot);
}

}  // namespace staircase
