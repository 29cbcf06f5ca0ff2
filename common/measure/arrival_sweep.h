// Measures how long users wait at different arrival rates: a table and a plot.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/options.h"
#include "common/measure/workload.h"

namespace staircase {

struct SweepOptions {
  std::string folder = {};      ///< where the results go; none: they are only printed
  std::vector<int> rates = {};  ///< requests per second; none: fractions of the knee
};

void add_options(OptionSink& sink, SweepOptions& options);

/// What the requests experienced: the times of each of them, in any order.
struct Waiting {
  std::vector<double> ttft = {}, tpot = {};  ///< in milliseconds
  double seconds = 0.0;                      ///< from the first arrival to the last token
};

/// Serves requests that arrive at several rates, and prints how long they waited. The first run starts with
/// all requests waiting, at most 20,000. The number that then ends in a second is the highest rate that can
/// be served, the knee. Above it the queue grows without bound. Writes capacity.csv, .json and .svg into the
/// folder, if there is one. The plot has the rates below the knee, since above it the times depend on the
/// number of requests. Returns the knee.
double sweep(const SweepOptions& options, const Workload& load, int most_positions,
             const std::function<Waiting(const std::vector<RandomRequest>& requests)>& serve);

}  // namespace staircase
