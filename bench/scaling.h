// How evenly a pass of a model is shared among many threads: counted, on any machine, not timed.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "common/model/config.h"

namespace staircase::bench {

struct ScalingOptions {
  ModelConfig config;
  std::vector<int> threads;
};

/// Counts, prints a table, and returns all figures. The balance of an operation is the mean of the work that
/// the threads have, divided by the most that one of them has: 1 where all have the same.
nlohmann::json count_shares(const ScalingOptions& options);

}  // namespace staircase::bench
