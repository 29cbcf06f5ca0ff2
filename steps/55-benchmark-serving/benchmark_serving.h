// Benchmarks static batches, continuous batching and chunked prefill on the same requests.
#pragma once

#include "common/base/error.h"
#include "common/base/message.h"
#include "common/decoding/model_engine.h"
#include "common/measure/measurement.h"
#include "common/program/output.h"
#include "generate.h"
#include "latencies.h"

namespace staircase {

struct BenchmarkOptions {
  std::string folder = {};  ///< folder for the results; empty: no benchmark
  int repetitions = 3;
};

inline void add_options(OptionSink& sink, BenchmarkOptions& options) {
  sink.add("--benchmark", Path{&options.folder}, "measure ways to serve; write the results to this folder");
  sink.add("--repetitions", &options.repetitions, "number of measurements", at_least(1));
}

/// All requests that have arrived form a batch, and the next batch begins when all texts of this one end.
inline void serve_in_static_batches(Scheduler& scheduler, std::vector<Request> requests, int slots,
                                    const Timer& timer) {
  std::ranges::stable_sort(requests, {}, &Request::arrival);
  for (std::ptrdiff_t first = 0, last = 0; first < std::ssize(requests); first = last) {
    timer.sleep_until(requests[first].arrival);
    const double now = timer.now();
    while (last < std::ssize(requests) && last < first + slots && requests[last].arrival <= now) ++last;
    serve(scheduler, {requests.begin() + first, requests.begin() + last}, timer);
  }
}

/// A way to serve requests, and the results of its runs.
struct Way {
  std::string name;
  PrefillOptions prefill = {};
  std::vector<double> rates = {};            ///< tokens/s of each run
  std::vector<TextTimes> times = {};         ///< times of all runs
  std::vector<std::vector<int>> texts = {};  ///< of the last run
  double rows_a_pass = 0.0;                  ///< in the last run
  double filled = 0.0;                       ///< the maximum share of the cache in use, in %
};

/// Serves the requests once, and adds the results to `way`.
inline void serve_once(Way& way, StaticEngine& engine, const StaticKvCache& cache,
                       const std::vector<Request>& requests, int slots, const Tokenizer& tokenizer) {
  Trace trace(requests, real_time());
  int most = 0;  // maximum positions in the cache
  const auto look_at_cache = [&](int, const Token&) {
    int positions = 0;
    for (int r = 0; r < slots; ++r) positions += cache.length(r);
    most = std::max(most, positions);
  };
  way.texts.resize(requests.size());
  const auto keep = [&](int number, Generation text) { way.texts[number] = std::move(text.tokens); };
  WatchedEngine watched(engine, trace);
  Scheduler scheduler(watched, tokenizer, slots, way.prefill, trace.watch(look_at_cache), keep);
  if (way.name == "static") {
    serve_in_static_batches(scheduler, requests, slots, trace.timer);
  } else {
    serve(scheduler, requests, trace.timer);
  }
  way.rates.push_back(latencies(trace.texts).tokens_per_second);
  way.times.insert(way.times.end(), trace.texts.begin(), trace.texts.end());
  way.rows_a_pass = 1.0 * trace.rows / trace.passes;
  way.filled = 100.0 * most / slots / cache.capacity();
}

/// A row of the table. The speed-up compares runs of the same round.
inline std::vector<Table::Cell> figures(const Way& way, const Way& in_static_batches) {
  std::vector<double> gains;
  for (std::size_t i = 0; i < way.rates.size(); ++i)
    gains.push_back(way.rates[i] / in_static_batches.rates[i]);
  int same = 0;
  for (std::size_t i = 0; i < way.texts.size(); ++i) same += way.texts[i] == in_static_batches.texts[i];
  const Spread rate = spread(way.rates);
  std::vector<Table::Cell> row{way.name, rate.median,     rate.low,  rate.high, spread(gains).median,
                               same,     way.rows_a_pass, way.filled};
  const Latencies all = latencies(way.times);
  for (const auto& times : {all.ttft, all.tpot, all.itl})
    for (const double share : {0.5, 0.95, 0.99, 1.0})
      row.emplace_back(times.empty() ? 0.0 : quantile(times, share));
  return row;
}

/// Serves the requests in all ways, which take turns. "filled" is the maximum share of the cache in use;
/// "same texts" counts texts that equal those of static batches. Writes serving.csv and .json to a folder.
inline void benchmark_serving(Model& model, const std::vector<Request>& requests, const RunOptions& run,
                              PrefillOptions prefill, const BenchmarkOptions& benchmark, Output& output) {
  if (requests.empty()) throw UsageError("--benchmark needs --requests: the file of requests to serve");
  make_folder(benchmark.folder);
  const int slots = std::min(run.max_batch_size, static_cast<int>(requests.size()));
  StaticKvCache cache(model, slots);
  StaticEngine engine(model, cache);
  const PrefillOptions chunks{prefill.chunk.value_or(64)};
  std::vector<Way> ways{{"static"}, {"continuous"}, {fmt::format("chunks of {}", *chunks.chunk), chunks}};
  for (Way warm_up : ways) serve_once(warm_up, engine, cache, requests, slots, output.tokenizer());
  for (int turn = 0; turn < benchmark.repetitions; ++turn)
    for (Way& way : ways) serve_once(way, engine, cache, requests, slots, output.tokenizer());

  Table table({"batching",    "tokens/s",    "low",         "high",        "speed-up",
               "same texts",  "rows a pass", "filled %",    "TTFT ms p50", "TTFT ms p95",
               "TTFT ms p99", "TTFT ms max", "TPOT ms p50", "TPOT ms p95", "TPOT ms p99",
               "TPOT ms max", "ITL ms p50",  "ITL ms p95",  "ITL ms p99",  "ITL ms max"});
  for (const Way& way : ways) table.add(figures(way, ways[0]));
  say(table.text());
  table.write_csv(benchmark.folder + "/serving.csv");
  table.write_json(benchmark.folder + "/serving.json");
}

}  // namespace staircase
