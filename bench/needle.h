// How much of a long text the model loses in caches of fewer bits, and in caches that drop positions: whether
// it can recall a hidden sentence, and the perplexity by position.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/tensor.h"

namespace staircase::bench {

struct NeedleOptions {
  std::filesystem::path model;
  std::filesystem::path text;  ///< the hay: paragraphs separated by empty lines
  DType dtype = DType::kBFloat16;
  int threads = 1;
  std::vector<int> contexts;  ///< tokens of hay
  int needles = 2;            ///< numbers to hide at each depth
};

/// Hides "The magic number of the miller is 48151." among the paragraphs, from their beginning (depth 0) to
/// their end (depth 100). After the paragraphs, the model must complete "The magic number of the miller is".
/// Each cache keeps keys and values in another type, or only a window of them, with and without the first
/// four tokens (Xiao et al. 2023). Prints a table for each context, and the perplexity of the hay alone by
/// position.
///
/// {"texts": [{"context", "depth", "number", "prompt": [ids]}],
///  "caches": {name: {"found": [a flag for each text], "perplexity": [{"from", "to", "perplexity"}]}}}
/// Throws UsageError for a context beyond the model's positions or the file's text.
nlohmann::json measure_needles(const NeedleOptions& options);

}  // namespace staircase::bench
