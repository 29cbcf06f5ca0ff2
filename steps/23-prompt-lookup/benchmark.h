// Measures what speculation gains: every number of drafted tokens, in every dtype, beside the target alone.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/message.h"
#include "common/measure/measurement.h"
#include "common/measure/plot.h"
#include "common/program/program.h"
#include "speculative.h"

namespace staircase {

/// What is measured; the texts and everything else are as the options say.
struct BenchmarkOptions {
  std::string folder = {};  ///< where the results go; none: no benchmark
  int repetitions = 3;
  int most_speculative_tokens = 8;
};

/// All runs of one draft model with one number of drafted tokens, or of the target alone.
struct SpeculationRuns {
  NamedModel* draft = nullptr;  ///< none: the target alone
  int gamma = 0;
  std::vector<double> rates = {};  ///< tokens per second of each
  Speculation speculation = {};    ///< what became of the drafted tokens, over all of them
};

/// New tokens per second of one text; without a draft model those of the target alone. Times the prefill as
/// well.
inline double tokens_per_second(Gpt2& target, NamedModel* draft, const std::vector<int>& prompt, int gamma,
                                GenerateOptions options, Speculation& speculation) {
  const auto start = Clock::now();
  std::size_t length = 0;
  if (draft == nullptr) {
    StaticKvCache cache(target, 1);
    length = generate(target, {&prompt, 1}, options, &cache, [](int, const Token&) {})[0].tokens.size();
  } else {
    options.num_speculative_tokens = gamma;
    DraftModel drafter(draft->model);
    length = speculate(target, drafter, prompt, options, speculation, [](const Token&) {}).tokens.size();
  }
  const std::chrono::duration<double> seconds = Clock::now() - start;
  return static_cast<double>(length - prompt.size()) / seconds.count();
}

/// How many times as fast as the baseline, from pairs of runs of the same turn: what slows the machine down
/// slows both. `rates` and `baselines` have a run of each turn.
inline Spread speedup(const std::vector<double>& rates, const std::vector<double>& baselines) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < rates.size(); ++i) ratios.push_back(rates[i] / baselines[i]);
  return spread(ratios);
}

/// Sweeps the number of drafted tokens for each draft model beside the target, in each dtype. The target
/// alone, all drafts and all numbers take turns within a repetition, so that a machine that slows down slows
/// all of them; the first turn warms up and does not count. Writes speculative.csv, .json and .svg.
inline void benchmark_speculative(Gpt2& target_model, std::span<const NamedModel> draft_models,
                                  std::span<const std::vector<int>> prompts, GenerateOptions options,
                                  const BenchmarkOptions& benchmark) {
  const std::filesystem::path folder = benchmark.folder;
  make_folder(folder);
  options.num_return_sequences = 1;
  Table table({"draft", "dtype", "drafted", "baseline tokens/s", "tokens/s", "low", "high", "speed-up",
               "acceptance", "tokens per pass"});
  Plot plot{.title = "Speculative decoding", .x_label = "drafted tokens a round", .y_label = "speed-up"};
  const std::vector<DType> dtypes{DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  const int turns = benchmark.repetitions + 1;
  const int variants = 1 + static_cast<int>(draft_models.size()) * benchmark.most_speculative_tokens;
  Progress progress(static_cast<int>(dtypes.size()) * turns * variants);
  for (const DType dtype : dtypes) {
    const std::string kept_in(to_string(dtype));
    Gpt2 target = target_model.load_as(dtype);
    std::vector<NamedModel> drafts;
    for (const NamedModel& draft : draft_models) drafts.push_back({draft.name, draft.model.load_as(dtype)});
    std::vector<SpeculationRuns> runs(1);  // the target alone; then each draft with each number of tokens
    for (NamedModel& draft : drafts) {
      for (int gamma = 1; gamma <= benchmark.most_speculative_tokens; ++gamma)
        runs.push_back({&draft, gamma});
    }
    for (int turn = 0; turn < turns; ++turn) {
      for (SpeculationRuns& run : runs) {
        const std::string name = run.draft == nullptr ? "no draft model" : run.draft->name;
        progress.next(fmt::format("{}, {}, {} drafted tokens", kept_in, name, run.gamma));
        for (const std::vector<int>& prompt : prompts) {
          Speculation warm;
          Speculation& speculation = turn == 0 ? warm : run.speculation;
          const double rate = tokens_per_second(target, run.draft, prompt, run.gamma, options, speculation);
          if (turn > 0) run.rates.push_back(rate);
        }
      }
    }
    const SpeculationRuns& alone = runs[0];
    for (const SpeculationRuns& run : std::span(runs).subspan(1)) {
      const Spread rate = spread(run.rates), gain = speedup(run.rates, alone.rates);
      const Speculation& s = run.speculation;
      table.add({run.draft->name, kept_in, run.gamma, spread(alone.rates).median, rate.median, rate.low,
                 rate.high, gain.median, static_cast<double>(s.accepted) / std::max(1, s.drafted),
                 static_cast<double>(s.tokens) / std::max(1, s.rounds)});
      if (run.gamma == 1) {
        plot.series.push_back({drafts.size() == 1 ? kept_in : run.draft->name + ", " + kept_in, {}});
      }
      plot.series.back().points.push_back({static_cast<double>(run.gamma), gain.median, gain.low, gain.high});
    }
  }
  say(table.text());
  table.write_csv(folder / "speculative.csv");
  table.write_json(folder / "speculative.json");
  write_svg(folder / "speculative.svg", plot);
}

}  // namespace staircase
