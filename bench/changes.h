// The effect of each change from GPT-2 to current models, measured with eight models. The first six are a
// chain in which each model adds one change. Each of the last two adds one change to the sixth.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace staircase::bench {

struct ChangesOptions {
  std::filesystem::path models;  ///< the folder with tales-gpt2-1m and the seven other models
  std::filesystem::path texts;   ///< JSON with `texts`: token ids of texts on which no model was trained
  int threads = 1;
  int rounds = 7;
};

/// Measures, prints a table, and returns all figures: parameters, cached numbers per token, and the loss in
/// nats per token. Times are measured for a prompt of 512 tokens, and for one more token after 480.
nlohmann::json measure_changes(const ChangesOptions& options);

}  // namespace staircase::bench
