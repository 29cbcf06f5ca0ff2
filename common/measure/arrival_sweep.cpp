#include "common/measure/arrival_sweep.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/message.h"
#include "common/measure/measurement.h"

namespace staircase {

namespace {

constexpr int kQueueLength = 20'000;  ///< most requests in the run that starts with all of them waiting

}  // namespace

void add_options(OptionSink& sink, SweepOptions& options) {
  sink.add("--benchmark", Path{&options.folder, "DIR"}, "write the table and a plot into this folder");
  sink.add("--rates", &options.rates,
           "requests per second to try; default: fractions of the estimated "
           "capacity",
           at_least(1));
}

double sweep(const SweepOptions& options, const Workload& load, int most_positions,
             const std::function<Waiting(const std::vector<RandomRequest>& requests)>& serve) {
  if (!options.folder.empty()) make_folder(options.folder);
  Workload queue = load;
  queue.requests = std::min(load.requests, kQueueLength);
  const double knee = queue.requests / serve(random_requests(queue, kAllAtOnce, most_positions)).seconds;
  std::vector<double> rates(options.rates.begin(), options.rates.end());
  if (rates.empty()) {
    for (const double share : {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.1})
      rates.push_back(share * knee);
  }
  Table table({"requests/s", "of the knee", "TTFT ms p50", "TTFT ms p95", "TTFT ms p99", "TPOT ms p50",
               "TPOT ms p95", "TPOT ms p99"});
  Plot plot{"How long a request waits", "requests per second", "milliseconds"};
  plot.series = {{"TTFT p50", {}}, {"TTFT p95", {}}, {"TTFT p99", {}}};
  for (const double rate : rates) {
    const Waiting waiting = serve(random_requests(load, rate, most_positions));
    std::vector<Table::Cell> cells{rate, rate / knee};
    for (const auto& times : {waiting.ttft, waiting.tpot}) {
      for (const double share : {0.5, 0.95, 0.99})
        cells.emplace_back(times.empty() ? 0.0 : quantile(times, share));
    }
    for (std::size_t i = 0; i < plot.series.size() && rate < knee; ++i)
      plot.series[i].points.push_back({rate, std::get<double>(cells[2 + i])});
    table.add(cells);
  }
  say(fmt::format("the knee: from {:.2f} requests/s on, the queue grows without bound", knee));
  if (options.folder.empty()) {
    say(table.text());
  } else {
    write_results(options.folder, "capacity", table, plot);
  }
  return knee;
}

}  // namespace staircase
