// The `rungs` command measures the ladders of kernels/rungs. It compares each rung with the one below and
// with the machine's limit.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace staircase::bench {

struct RungOptions {
  std::string ladder;  ///< "matvec", "product", "attention" or "prefill-attention"; if empty, all ladders
  int threads = 1;
  int rounds = 5;
};

/// Measures in rounds, prints a table for each ladder, and returns all figures. Throws UsageError for an
/// unknown name.
nlohmann::json measure_rungs(const RungOptions& options);

}  // namespace staircase::bench
