// Measures what a cache gains: none, one that grows, and one that stands, over texts of several lengths.
#pragma once

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "benchmark.h"
#include "common/base/message.h"
#include "common/measure/measurement.h"
#include "common/measure/plot.h"
#include "dynamic_kv_cache.h"
#include "generate.h"

namespace staircase {

/// What is measured: greedy decoding behind one prompt. Of the other options only those of the model count.
struct CacheBenchmarkOptions {
  std::string folder = {};  ///< where the results go
  int repetitions = 3;
  std::vector<int> lengths{200, 400, 800};  ///< in new tokens
};

struct CacheRun {
  std::vector<int> tokens;
  double seconds = 0.0;
  CacheUse use = {};
};

/// Greedy decoding with the cache of step 13.
inline CacheRun decode_dynamic(Gpt2& model, std::vector<int> tokens, int count) {
  const auto start = Clock::now();
  DynamicKvCache cache(model);
  for (int i = 0; i < count; ++i) {
    const std::span<const int> fresh = std::span(tokens).last(i == 0 ? tokens.size() : 1);
    tokens.push_back(argmax(model.next_logits(fresh, cache)));
  }
  return {tokens, std::chrono::duration<double>(Clock::now() - start).count(), cache.use()};
}

/// Greedy decoding as `generate` does it, with the cache of step 15 or without one. When the context is full
/// the cache slides.
inline CacheRun decode_static(Gpt2& model, const std::vector<int>& prompt, int count, bool use_cache) {
  const auto start = Clock::now();
  std::optional<StaticKvCache> cache;
  if (use_cache) cache.emplace(model, 1);
  const std::vector<Generation> texts =
      generate(model, {&prompt, 1}, {.max_new_tokens = count, .ignore_eos = true}, cache ? &*cache : nullptr,
               [](int, const Token&) {});
  return {texts[0].tokens, std::chrono::duration<double>(Clock::now() - start).count(),
          cache ? cache->use() : CacheUse()};
}

/// Measures every cache over every length, taking turns within a repetition. One more turn of the shortest
/// length comes first, warms up and does not count. Writes kv-cache.csv, .json and .svg. "same tokens" counts
/// how far the text is the one without a cache: all the way, unless the cache slid or two tokens were nearly
/// a tie.
inline void benchmark_kv_cache(Gpt2& model, const std::vector<int>& prompt,
                               const CacheBenchmarkOptions& benchmark) {
  const std::filesystem::path folder = benchmark.folder;
  make_folder(folder);
  const int context = model.config().n_positions;
  const char* const kNames[] = {"none", "dynamic", "static"};
  Table table({"new tokens", "cache", "tokens/s", "low", "high", "speed-up", "cache MiB", "copied MiB",
               "same tokens"});
  Plot plot{
      .title = "Decoding with a cache of keys and values", .x_label = "new tokens", .y_label = "tokens/s"};
  for (const char* name : kNames) plot.series.push_back({name, {}});
  Progress progress((static_cast<int>(benchmark.lengths.size()) * benchmark.repetitions + 1) * 3);
  // The last token never enters a cache.
  const auto fits = [&](int length) { return std::ssize(prompt) + length <= context + 1; };
  const auto run_turn = [&](int length) {
    std::vector<std::optional<CacheRun>> runs(3);
    for (int cache = 0; cache < 3; ++cache) {
      progress.next(fmt::format("{} new tokens, cache: {}", length, kNames[cache]));
      if (cache == 1 && !fits(length)) continue;  // it ends with the context
      runs[cache] = cache == 1 ? decode_dynamic(model, prompt, length)
                               : decode_static(model, prompt, length, cache == 2);
    }
    return runs;
  };
  run_turn(std::ranges::min(benchmark.lengths));
  for (const int length : benchmark.lengths) {
    std::vector<std::vector<double>> rates(3);
    std::vector<std::optional<CacheRun>> runs;
    for (int turn = 0; turn < benchmark.repetitions; ++turn) {
      runs = run_turn(length);
      for (int cache = 0; cache < 3; ++cache) {
        if (runs[cache]) rates[cache].push_back(length / runs[cache]->seconds);
      }
    }
    for (int cache = 0; cache < 3; ++cache) {
      if (!runs[cache]) continue;
      const CacheRun& run = *runs[cache];
      const Spread rate = spread(rates[cache]);
      const auto same = std::ranges::mismatch(run.tokens, runs[0]->tokens).in1 - run.tokens.begin();
      const std::string name = cache == 2 && !fits(length) ? "static, slides" : kNames[cache];
      table.add({length, name, rate.median, rate.low, rate.high, speedup(rates[cache], rates[0]).median,
                 static_cast<double>(run.use.bytes) / (1 << 20),
                 static_cast<double>(run.use.copied) / (1 << 20),
                 static_cast<int>(same - std::ssize(prompt))});
      plot.series[cache].points.push_back({static_cast<double>(length), rate.median, rate.low, rate.high});
    }
  }
  std::erase_if(plot.series, [](const PlotSeries& series) { return series.points.empty(); });
  say(table.text());
  table.write_csv(folder / "kv-cache.csv");
  table.write_json(folder / "kv-cache.json");
  write_svg(folder / "kv-cache.svg", plot);
}

}  // namespace staircase
