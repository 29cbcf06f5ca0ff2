// Benchmarks static batches, continuous batching and chunked prefill on the same requests.
#pragma once

#include "common/base/error.h"
#include "common/base/message.h"
#include "common/decoding/model_engine.h"
#include "common/measure/measurement.h"
#include "common/measure/plot.h"
#include "generate.h"
#include "latencies.h"

namespace staircase {

struct BenchmarkOptions {
  std::string folder = {};  ///< where the results go; none: no benchmark
  int repetitions = 3;
};

inline void add_options(OptionSink& sink, BenchmarkOptions& options) {
  sink.add("--benchmark", Path{&options.folder}, "measure ways to serve requests; results go to this folder");
  sink.add("--repetitions", &options.repetitions, "how often to measure", at_least(1));
}

/// Those who have come form a batch, and the next begins when all texts of this one have ended.
inline void serve_in_static_batches(Scheduler& scheduler, std::vector<Request> requests, int places,
                                    const Timer& timer) {
  std::ranges::stable_sort(requests, {}, &Request::arrival);
  for (std::ptrdiff_t first = 0, last = 0; first < std::ssize(requests); first = last) {
    timer.sleep_until(requests[first].arrival);
    const double now = timer.now();
    while (last < std::ssize(requests) && last < first + places && requests[last].arrival <= now) ++last;
    serve(scheduler, {requests.begin() + first, requests.begin() + last}, timer);
  }
}

/// Each text is on the lowest lane that is free from its joining to its last token: a lane for each place.
inline std::vector<TimelineBar> bars(std::vector<TextTimes> texts) {
  std::erase_if(texts, [](const TextTimes& text) { return text.tokens.empty(); });
  std::ranges::stable_sort(texts, {}, &TextTimes::joined);
  std::vector<double> free_from(texts.size());  // of each lane
  std::vector<TimelineBar> result;
  for (const auto& [arrival, joined, tokens] : texts) {
    const auto lane = std::ranges::find_if(free_from, [when = *joined](double time) { return time <= when; });
    *lane = tokens.back();
    const int number = static_cast<int>(lane - free_from.begin()) + 1;
    result.push_back({number, *joined, tokens.front(), 0});
    if (tokens.size() > 1) result.push_back({number, tokens.front(), tokens.back(), 1});
  }
  return result;
}

/// A way to serve, and what its runs were like.
struct Way {
  std::string name;
  PrefillOptions prefill = {};
  std::vector<double> rates = {};            ///< tokens/s of each run
  std::vector<TextTimes> times = {};         ///< of all runs
  std::vector<std::vector<int>> texts = {};  ///< of the last run
};

/// Serves the requests in all ways, which take turns; the first turn warms up. "filled" is the most that the
/// cache held, "same texts" are those of static batches, too. Writes serving.csv, .json and .svg to a folder.
inline void benchmark_serving(Model& model, const std::vector<Request>& requests, const RunOptions& run,
                              PrefillOptions prefill, const BenchmarkOptions& benchmark, Output& output) {
  if (requests.empty()) throw UsageError("--benchmark needs --requests: a file of what is to be served");
  make_folder(benchmark.folder);
  Table table({"batching",    "tokens/s",    "low",         "high",        "speed-up",
               "same texts",  "rows a pass", "filled %",    "TTFT ms p50", "TTFT ms p95",
               "TTFT ms p99", "TTFT ms max", "TPOT ms p50", "TPOT ms p95", "TPOT ms p99",
               "TPOT ms max", "ITL ms p50",  "ITL ms p95",  "ITL ms p99",  "ITL ms max"});
  Timeline timeline{.x_label = "seconds", .y_label = "row", .kinds = {"prefill", "decode"}};
  const int places = std::min(run.max_batch_size, static_cast<int>(requests.size()));
  StaticKvCache cache(model, places);
  StaticEngine engine(model, cache);
  const PrefillOptions chunks{prefill.chunk.value_or(64)};
  std::vector<Way> ways{{"static"}, {"continuous"}, {fmt::format("chunks of {}", *chunks.chunk), chunks}};
  for (int turn = 0; turn <= benchmark.repetitions; ++turn) {
    for (Way& way : ways) {
      way.texts.resize(requests.size());
      Trace trace(requests, real_time());
      int most = 0;  // positions in the cache
      const auto look_at_cache = [&](int, const Token&) {
        int positions = 0;
        for (int r = 0; r < places; ++r) positions += cache.length(r);
        most = std::max(most, positions);
      };
      WatchedEngine watched(engine, trace);
      Scheduler scheduler(watched, output.tokenizer(), places, way.prefill, trace.watch(look_at_cache),
                          [&](int number, Generation text) { way.texts[number] = std::move(text.tokens); });
      if (way.name == "static") serve_in_static_batches(scheduler, requests, places, trace.timer);
      if (way.name != "static") serve(scheduler, requests, trace.timer);
      if (turn == 0) continue;
      way.rates.push_back(latencies(trace.texts).tokens_per_second);
      way.times.insert(way.times.end(), trace.texts.begin(), trace.texts.end());
      if (turn < benchmark.repetitions) continue;
      const Spread rate = spread(way.rates);
      std::vector<double> gains;
      for (int i = 0; i < turn; ++i) gains.push_back(way.rates[i] / ways[0].rates[i]);
      int same = 0;
      for (std::size_t i = 0; i < way.texts.size(); ++i) same += way.texts[i] == ways[0].texts[i];
      std::vector<Table::Cell> row{way.name, rate.median, rate.low, rate.high, spread(gains).median, same};
      row.insert(row.end(), {1.0 * trace.rows / trace.passes, 100.0 * most / places / cache.capacity()});
      for (const Latencies all = latencies(way.times); const auto& times : {all.ttft, all.tpot, all.itl})
        for (const double share : {0.5, 0.95, 0.99, 1.0})
          row.emplace_back(times.empty() ? 0.0 : quantile(times, share));
      table.add(row);
      timeline.panels.push_back({way.name, bars(trace.texts)});
    }
  }
  say(table.text());
  table.write_csv(benchmark.folder + "/serving.csv");
  table.write_json(benchmark.folder + "/serving.json");
  write_svg(benchmark.folder + "/serving.svg", timeline);
}

}  // namespace staircase
