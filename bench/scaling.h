// How evenly the work of a pass divides among many threads. The shares are counted, not timed, so any machine
// will do.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "common/model/config.h"

namespace staircase::bench {

struct ScalingOptions {
  ModelConfig config;
  std::vector<int> threads;
};

/// Counts, prints a table, and returns all figures. The balance of an operation is the mean of the threads'
/// work, divided by the largest share: 1 if all are equal.
nlohmann::json count_shares(const ScalingOptions& options);

}  // namespace staircase::bench
