// What each change from GPT-2 to current models did, measured with eight models. Six differ by
// one change each, and the last two each by one from the sixth.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace staircase::bench {

struct ChangesOptions {
  std::filesystem::path models;  ///< the folder with tales-gpt2-1m and its five relatives
  std::filesystem::path texts;   ///< JSON with `texts`: token ids of texts that no model was trained on
  int threads = 1;
  int rounds = 7;
};

/// Measures, prints a table, and returns all figures: parameters, cached numbers per token, and the loss in
/// nats per token. The times are those of a prompt of 512 tokens, and of one more token after 480.
nlohmann::json measure_changes(const ChangesOptions& options);

}  // namespace staircase::bench
