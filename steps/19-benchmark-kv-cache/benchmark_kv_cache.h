// Measures the gain of a cache: compares none, a growing one and a static one on texts of several lengths.
#pragma once

#include "benchmark.h"
#include "dynamic_kv_cache.h"

namespace staircase {

/// A cache and a number of new tokens. All ways to decode take turns.
struct CacheWay {
  std::string cache;
  int length = 0;
  std::vector<int> tokens = {};  ///< prompt and new tokens of the last run
  CacheUse use = {};             ///< of the last run
};

/// Decodes `count` tokens greedily and returns tokens per second, prefill included. At the end of the
/// context, the growing cache stays full and the static one slides.
inline double tokens_per_second(Model& model, CacheWay& way, const std::vector<int>& prompt, int count) {
  const auto start = Clock::now();
  way.tokens = prompt;
  if (way.cache == "dynamic") {
    DynamicKvCache cache(model);
    for (int i = 0; i < count; ++i) {
      const std::span<const int> fresh = std::span(way.tokens).subspan(cache.length(0));
      way.tokens.push_back(argmax(model.next_logits(fresh, cache)));
    }
    way.use = cache.use();
  } else {
    std::unique_ptr<KvCache> cache = std::make_unique<NoCache>();
    if (way.cache != "none") cache = std::make_unique<StaticKvCache>(model);
    const TextOptions options{.stopping = {.max_new_tokens = count, .ignore_eos = true}};
    way.tokens = generate(model, {prompt}, options, *cache, [](int, const Token&) {})[0].tokens;
    way.use = cache->use();
  }
  return count / std::chrono::duration<double>(Clock::now() - start).count();
}

/// Measures every cache with every length, for a model in its dtype. The warm-up uses the shortest length,
/// because without a cache the longest takes more time than all others together.
inline void measure_caches(Model& model, const std::vector<int>& prompt, const BenchmarkOptions& benchmark,
                           Table& table, Plot& plot) {
  std::vector<CacheWay> ways;
  for (const int length : benchmark.lengths) {
    // The last token never enters a cache.
    const bool fits = std::ssize(prompt) + length <= model.config().n_positions + 1;
    ways.push_back({"none", length});
    if (fits) ways.push_back({"dynamic", length});
    ways.push_back({fits ? "static" : "static, slides", length});
  }
  const int shortest = std::ranges::min(benchmark.lengths);
  const auto rates = take_turns(ways.size(), benchmark.repetitions, [&](std::size_t way, bool warms_up) {
    return tokens_per_second(model, ways[way], prompt, warms_up ? shortest : ways[way].length);
  });
  const auto mebibytes = [](std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::size_t none = 0;
  for (std::size_t w = 0; w < ways.size(); ++w) {
    const auto& [cache, length, tokens, use] = ways[w];
    if (cache == "none") none = w;
    const std::string dtype(to_string(model.dtype())), name = dtype + ", " + cache;
    const Spread rate = spread(rates[w]);
    const auto same =
        std::ranges::mismatch(tokens, ways[none].tokens).in1 - tokens.begin() - std::ssize(prompt);
    table.add({dtype, length, cache, rate.median, rate.low, rate.high, speedup(rates[w], rates[none]).median,
               mebibytes(use.bytes), mebibytes(use.allocated), mebibytes(use.copied),
               static_cast<int>(same)});
    auto series = std::ranges::find(plot.series, name, &PlotSeries::name);
    if (series == plot.series.end()) series = plot.series.insert(series, {name, {}});
    series->points.push_back({1.0 * length, rate.median, rate.low, rate.high});
  }
}

/// Measures the caches in each dtype. Writes kv-cache.csv, .json and .svg. "same tokens" counts how many
/// tokens equal those without a cache: all, unless the cache slid or two tokens nearly tied.
inline void benchmark_kv_cache(const Model& model, const std::vector<int>& prompt,
                               const BenchmarkOptions& benchmark) {
  make_folder(benchmark.folder);
  Table table({"dtype", "new tokens", "cache", "tokens/s", "low", "high", "speed-up", "cache MiB",
               "allocated MiB", "copied MiB", "same tokens"});
  Plot plot{
      .title = "Decoding with a cache of keys and values", .x_label = "new tokens", .y_label = "tokens/s"};
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    Model kept = model.load_as(dtype);
    measure_caches(kept, prompt, benchmark, table, plot);
  }
  write_results(benchmark.folder, "kv-cache", table, plot);
}

}  // namespace staircase
