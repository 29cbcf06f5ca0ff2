// Measures what continuous batching gains: the same requests in static batches, in a continuous one, and with
// their prompts in chunks.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "benchmark.h"
#include "common/base/message.h"
#include "common/measure/measurement.h"
#include "common/measure/plot.h"
#include "continuous.h"

namespace staircase {

/// The request of each bar is on the lowest lane that is free from its joining to its last token: one lane
/// for each row of the batch.
inline std::vector<TimelineBar> bars(std::span<const Served> all) {
  std::vector<const Served*> order;
  for (const Served& served : all) order.push_back(&served);
  std::ranges::stable_sort(order, {}, [](const Served* served) { return served->joined; });
  std::vector<double> free_from;  // of each lane
  std::vector<TimelineBar> result;
  for (const Served* served : order) {
    auto lane = std::ranges::find_if(free_from, [&](double time) { return time <= served->joined; });
    if (lane == free_from.end()) lane = free_from.insert(lane, 0.0);
    *lane = served->times.back();
    const int number = static_cast<int>(lane - free_from.begin()) + 1;
    result.push_back({number, served->joined, served->times.front(), 0});
    if (served->times.size() > 1) result.push_back({number, served->times.front(), served->times.back(), 1});
  }
  return result;
}

/// A way to serve, what its last run was like, and the figures of all its runs.
struct ServingRuns {
  std::string name;
  ServingOptions options;
  Service service = {};
  std::vector<double> rates = {};  ///< tokens/s
  Latencies times = {};
  std::vector<double> gaps = {};  ///< between two tokens of a text, in milliseconds
};

inline void add_run(ServingRuns& runs, Service service) {
  double tokens = 0.0;
  for (const Served& served : service.served) {
    tokens += static_cast<double>(served.times.size());
    for (std::size_t i = 1; i < served.times.size(); ++i) {
      runs.gaps.push_back(1000.0 * (served.times[i] - served.times[i - 1]));
    }
  }
  runs.rates.push_back(tokens / duration(service.served));
  const Latencies times = latencies(service.served);
  const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(runs.times.first_token, times.first_token);
  append(runs.times.per_token, times.per_token);
  runs.service = std::move(service);
}

/// Serves the requests in all ways, which take turns within a repetition, behind a few requests that warm up.
/// The static batches are those of step 16: a row that is done leaves, and only its place stays empty. A gap
/// is the time between two tokens of a text, "filled" the most that the cache held at a time, and "same
/// texts" counts those that are the same as in static batches. Writes continuous-batching.csv, .json and
/// .svg.
inline void benchmark_continuous(Gpt2& model, const Prompts& prompts, std::span<const Request> requests,
                                 const ServingOptions& serving, const BenchmarkOptions& benchmark) {
  const std::filesystem::path folder = benchmark.folder;
  make_folder(folder);
  const int rows = std::min(serving.max_batch_size, static_cast<int>(requests.size()));
  const int chunk = serving.prefill_chunk.value_or(64);
  std::vector<ServingRuns> ways{{"static", {rows, {}, Batching::kStatic}},
                                {"continuous", {rows, {}, Batching::kContinuous}},
                                {fmt::format("chunks of {}", chunk), {rows, chunk, Batching::kContinuous}}};
  StaticKvCache cache(model, rows);
  const auto run = [&](std::span<const Request> some, const ServingOptions& options) {
    return serve(model, prompts, some, options, cache, real_time(), [](int, const Token&) {});
  };
  Progress progress(benchmark.repetitions * static_cast<int>(ways.size()));
  std::vector<Request> few(requests.begin(),
                           requests.begin() + std::min<std::ptrdiff_t>(rows, std::ssize(requests)));
  for (Request& request : few) request.arrival = 0.0;
  run(few, serving);
  for (int turn = 0; turn < benchmark.repetitions; ++turn) {
    for (ServingRuns& way : ways) {
      progress.next(way.name);
      add_run(way, run(requests, way.options));
    }
  }

  Table table({"batching", "tokens/s", "low", "high", "speed-up", "rows a pass", "TTFT ms p50", "TTFT ms p95",
               "TTFT ms p99", "TPOT ms p50", "TPOT ms p95", "TPOT ms p99", "gap ms p99", "gap ms max",
               "cache MiB", "filled MiB", "same texts"});
  Timeline timeline{.x_label = "seconds", .y_label = "row", .kinds = {"prefill", "decode"}};
  const double cache_mib = static_cast<double>(cache.use().bytes) / (1 << 20);
  for (const ServingRuns& way : ways) {
    const Spread rate = spread(way.rates);
    std::vector<Table::Cell> row{way.name,
                                 rate.median,
                                 rate.low,
                                 rate.high,
                                 speedup(way.rates, ways[0].rates).median,
                                 static_cast<double>(way.service.rows) / way.service.passes};
    for (const std::vector<double>& times : {way.times.first_token, way.times.per_token}) {
      for (const double share : {0.5, 0.95, 0.99}) {
        row.emplace_back(times.empty() ? 0.0 : quantile(times, share));
      }
    }
    for (const double share : {0.99, 1.0})
      row.emplace_back(way.gaps.empty() ? 0.0 : quantile(way.gaps, share));
    row.emplace_back(cache_mib);
    row.emplace_back(cache_mib * way.service.most_positions / (rows * cache.capacity()));
    int same = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      same += way.service.served[i].generation.tokens == ways[0].service.served[i].generation.tokens;
    }
    row.emplace_back(same);
    table.add(row);
    timeline.panels.push_back({way.name, bars(way.service.served)});
  }
  say(table.text());
  table.write_csv(folder / "continuous-batching.csv");
  table.write_json(folder / "continuous-batching.json");
  write_svg(folder / "continuous-batching.svg", timeline);
}

}  // namespace staircase
