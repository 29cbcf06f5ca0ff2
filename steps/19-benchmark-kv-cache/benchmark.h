// Measures the speed-up of speculation over the target alone, for each number of drafted tokens in each
// dtype.
#pragma once

#include "common/base/error.h"
#include "common/measure/measurement.h"
#include "common/program/program.h"
#include "generate.h"
#include "speculative.h"

namespace staircase {

struct BenchmarkOptions {
  std::string folder = {};  ///< folder for the results; empty: no benchmark
  int repetitions = 3;
  int most_speculative_tokens = 8;
  std::vector<int> lengths{200, 400, 800};  ///< new tokens per text, for the cache
};

inline void add_options(OptionSink& sink, BenchmarkOptions& options) {
  sink.add("--benchmark", Path{&options.folder},
           "measure the gain of the draft model, or of the cache if there is none; write the results to this "
           "folder");
  sink.add("--repetitions", &options.repetitions, "number of measurements", at_least(1));
  sink.add("--most-speculative-tokens", &options.most_speculative_tokens,
           "largest number of drafted "
           "tokens to measure",
           between(1, 16));
  sink.add("--benchmark-lengths", &options.lengths, "numbers of new tokens to measure the cache with",
           at_least(1));
}

/// Throws UsageError for options that speculation, or a benchmark, would ignore.
inline void check(const BenchmarkOptions& benchmark, std::size_t drafts, const Prompts& prompts,
                  const TextOptions& options, const RunOptions& run) {
  const bool measures = !benchmark.folder.empty();
  if (drafts == 0) {
    if (prompts.size() > 1 || options.sampling.do_sample || run.num_return_sequences > 1 || !run.use_cache)
      throw UsageError(
          "the --benchmark of the cache continues one prompt greedily, with a cache and without: it cannot "
          "be combined with a second prompt, --do-sample or --no-use-cache");
    return;
  }
  if (measures && options.stopping.max_new_tokens == 0)
    throw UsageError("the --benchmark of a --draft-model needs --max-new-tokens of 1 or more");
  if (!measures && drafts > 1)
    throw UsageError("--draft-model is given {} times, but without --benchmark only one can propose", drafts);
  if ((!measures && prompts.size() > 1) || run.num_return_sequences > 1 || !run.use_cache)
    throw UsageError("--draft-model needs the cache, one prompt and one continuation");
}

/// A draft model with a number of drafted tokens, or the target alone. All ways to decode take turns.
struct Way {
  NamedModel* draft = nullptr;
  int gamma = 0;
  Speculation counts = {};  ///< over all runs, all of which are equal
};

/// New tokens per second for all prompts, one after another; prefill included.
inline double tokens_per_second(Model& target, Way& way, const Prompts& prompts, const TextOptions& options) {
  int count = 0;
  const auto start = Clock::now();
  for (const std::vector<int>& prompt : prompts) {
    if (way.draft == nullptr) {
      StaticKvCache cache(target);
      generate(target, {prompt}, options, cache, [&](int, const Token&) { ++count; });
    } else {
      speculate(target, way.draft->model, prompt, options, way.gamma, way.counts,
                [&](const Token&) { ++count; });
    }
  }
  return count / std::chrono::duration<double>(Clock::now() - start).count();
}

/// Sweeps the number of drafted tokens for each draft model, in each dtype, over all prompts. Writes
/// speculative.csv, .json and .svg.
inline void benchmark_speculative(const Model& model, std::span<const NamedModel> draft_models,
                                  const Prompts& prompts, const TextOptions& options,
                                  const BenchmarkOptions& benchmark) {
  make_folder(benchmark.folder);
  Table table({"draft", "dtype", "drafted", "baseline tokens/s", "tokens/s", "low", "high", "speed-up",
               "acceptance", "tokens per pass"});
  Plot plot{.title = "Speculative decoding", .x_label = "drafted tokens a round", .y_label = "speed-up"};
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    Model target = model.load_as(dtype);
    std::vector<NamedModel> drafts;
    for (const NamedModel& draft : draft_models) drafts.push_back({draft.name, draft.model.load_as(dtype)});
    std::vector<Way> ways(1);  // the target alone
    for (NamedModel& draft : drafts)
      for (int gamma = 1; gamma <= benchmark.most_speculative_tokens; ++gamma)
        ways.push_back({&draft, gamma});
    const auto rates =
        take_turns(ways.size(), benchmark.repetitions, [&](std::size_t way, bool /*warms_up*/) {
          return tokens_per_second(target, ways[way], prompts, options);
        });
    for (std::size_t way = 1; way < ways.size(); ++way) {
      const auto& [draft, gamma, counts] = ways[way];
      const std::string kept_in(to_string(dtype));
      const Spread rate = spread(rates[way]), gain = speedup(rates[way], rates[0]);
      table.add({draft->name, kept_in, gamma, spread(rates[0]).median, rate.median, rate.low, rate.high,
                 gain.median, 1.0 * counts.accepted / std::max(1, counts.drafted),
                 1.0 + 1.0 * counts.accepted / counts.rounds});
      if (gamma == 1) plot.series.push_back({draft->name + ", " + kept_in, {}});
      plot.series.back().points.push_back({1.0 * gamma, gain.median, gain.low, gain.high});
    }
  }
  write_results(benchmark.folder, "speculative", table, plot);
}

}  // namespace staircase
