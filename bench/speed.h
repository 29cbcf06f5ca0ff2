// Measures how fast one model runs, compared with the machine's limits.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "kernels/tensor.h"

namespace staircase::bench {

struct SpeedOptions {
  std::filesystem::path model;
  DType dtype = DType::kFloat32;
  std::optional<DType> cache_dtype = {};  ///< without a value, it follows from `dtype`
  int threads = 1;
  int prompt_tokens = 0;  ///< 0 means 512, or the model's context if that is shorter
  int rounds = 7;
  std::vector<int> batches;  ///< numbers of sequences to decode together; if not empty, 1 is also measured
};

/// Measures, prints a table, and returns all figures.
nlohmann::json measure_speed(const SpeedOptions& options);

}  // namespace staircase::bench
