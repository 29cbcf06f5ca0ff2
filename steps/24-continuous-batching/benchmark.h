// Measures what speculation gains: every number of drafted tokens, in every dtype, beside the target alone.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/measurement.h"
#include "common/message.h"
#include "common/plot.h"
#include "speculative.h"

namespace staircase {

/// What is measured; the texts and everything else are as the options say.
struct BenchmarkOptions {
  std::string folder = {};  ///< where the results go; none: no benchmark
  int repetitions = 3;
  int most_speculative_tokens = 8;
};

/// Tokens per second of each run of one number of drafted tokens, and what became of those.
struct SpeculationRuns {
  std::vector<double> rates;
  Speculation speculation;
};

/// New tokens per second of one text; gamma 0 is the target alone. Times the prefill as well.
inline double tokens_per_second(Gpt2& target, Gpt2& draft, const std::vector<int>& prompt, int gamma,
                                GenerateOptions options, Speculation& speculation) {
  const auto start = Clock::now();
  std::size_t length = 0;
  if (gamma == 0) {
    StaticKvCache cache(target, 1);
    length = generate(target, {&prompt, 1}, options, &cache, [](int, const Token&) {})[0].tokens.size();
  } else {
    options.num_speculative_tokens = gamma;
    DraftModel drafter(draft);
    length = speculate(target, drafter, prompt, options, speculation, [](const Token&) {}).tokens.size();
  }
  const std::chrono::duration<double> seconds = Clock::now() - start;
  return static_cast<double>(length - prompt.size()) / seconds.count();
}

/// Sweeps the number of drafted tokens for both models in each dtype. All numbers take turns within a
/// repetition, so that a machine that slows down slows all of them; the first turn warms up and does not
/// count. Writes speculative.csv, .json and .svg.
inline void benchmark_speculative(Gpt2& target_model, Gpt2& draft_model,
                                  std::span<const std::vector<int>> prompts, GenerateOptions options,
                                  const BenchmarkOptions& benchmark) {
  const std::filesystem::path folder = benchmark.folder;
  make_folder(folder);
  options.num_return_sequences = 1;
  Table table({"dtype", "drafted", "baseline tokens/s", "tokens/s", "low", "high", "speed-up", "acceptance",
               "tokens per pass"});
  Plot plot{.title = "Speculative decoding", .x_label = "drafted tokens a round", .y_label = "speed-up"};
  const std::vector<DType> dtypes{DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  const int turns = benchmark.repetitions + 1, gammas = benchmark.most_speculative_tokens + 1;
  Progress progress(static_cast<int>(dtypes.size()) * turns * gammas);
  for (const DType dtype : dtypes) {
    Gpt2 target = target_model.load_as(dtype), draft = draft_model.load_as(dtype);
    std::vector<SpeculationRuns> runs(gammas);
    for (int turn = 0; turn < turns; ++turn) {
      for (int gamma = 0; gamma < gammas; ++gamma) {
        progress.next(fmt::format("{}, {} drafted tokens", to_string(dtype), gamma));
        for (const std::vector<int>& prompt : prompts) {
          Speculation warm;
          Speculation& speculation = turn == 0 ? warm : runs[gamma].speculation;
          const double rate = tokens_per_second(target, draft, prompt, gamma, options, speculation);
          if (turn > 0) runs[gamma].rates.push_back(rate);
        }
      }
    }
    PlotSeries series{std::string(to_string(dtype)), {}};
    for (int gamma = 1; gamma < gammas; ++gamma) {
      // Pairs of runs that stood beside each other: what slows the machine down slows both.
      std::vector<double> speedups;
      for (std::size_t i = 0; i < runs[0].rates.size(); ++i) {
        speedups.push_back(runs[gamma].rates[i] / runs[0].rates[i]);
      }
      const Spread rate = spread(runs[gamma].rates), speedup = spread(speedups);
      const Speculation& s = runs[gamma].speculation;
      table.add({std::string(to_string(dtype)), gamma, spread(runs[0].rates).median, rate.median, rate.low,
                 rate.high, speedup.median, static_cast<double>(s.accepted) / std::max(1, s.drafted),
                 static_cast<double>(s.tokens) / std::max(1, s.rounds)});
      series.points.push_back({static_cast<double>(gamma), speedup.median, speedup.low, speedup.high});
    }
    plot.series.push_back(series);
  }
  say(table.text());
  table.write_csv(folder / "speculative.csv");
  table.write_json(folder / "speculative.json");
  write_svg(folder / "speculative.svg", plot);
}

}  // namespace staircase
