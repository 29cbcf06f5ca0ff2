// Measures how long users wait at different arrival rates, as a table and a plot.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/options.h"
#include "common/measure/workload.h"

namespace staircase {

struct SweepOptions {
  std::string folder = {};      ///< where to write the results; empty: they are only printed
  std::vector<int> rates = {};  ///< requests per second; empty: fractions of the knee
};

void add_options(OptionSink& sink, SweepOptions& options);

/// The latencies of all requests, in any order.
struct Waiting {
  std::vector<double> ttft = {}, tpot = {};  ///< in milliseconds
  double seconds = 0.0;                      ///< from the first arrival to the last token
};

/// Serves requests that arrive at several rates, and prints how long they waited. The first run starts with
/// all requests waiting, but no more than 20,000. It completes requests at the highest rate that can be
/// served, the knee. Above the knee the queue grows without bound. Writes capacity.csv, .json and .svg if a
/// folder is given. The plot shows only rates below the knee, since above it the times depend on the number
/// of requests. Returns the knee in requests per second.
double sweep(const SweepOptions& options, const Workload& load, int most_positions,
             const std::function<Waiting(const std::vector<RandomRequest>& requests)>& serve);

}  // namespace staircase
