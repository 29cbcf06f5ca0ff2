// How long users wait, by how many of them come: a table and a plot.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/options.h"
#include "common/measure/load.h"

namespace staircase {

struct SweepOptions {
  std::string folder = {};      ///< where the results go; none: they are only shown
  std::vector<int> rates = {};  ///< requests per second; none: parts of the knee
};

void add_options(OptionSink& sink, SweepOptions& options);

/// What requests have seen: the times of each of them, in any order.
struct Waiting {
  std::vector<double> ttft = {}, tpot = {};  ///< in milliseconds
  double seconds = 0.0;                      ///< from the first arrival to the last token
};

/// Has requests served that come at several rates, and says how long they waited. First all of them are there
/// from the start, or 20,000 if they are more. As many as then end in a second can be served: the knee. Where
/// more come the queue grows without end. Writes capacity.csv, .json and .svg into the folder, if there is
/// one. The plot has the rates below the knee, since above it the times depend on how many requests there
/// are. Returns the knee.
double sweep(const SweepOptions& options, const LoadOptions& load, int most_positions,
             const std::function<Waiting(const std::vector<LoadedRequest>& requests)>& serve);

}  // namespace staircase
