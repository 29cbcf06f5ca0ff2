// The cost of constraining texts to a schema: compiling the schema, and computing a mask before each token.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace staircase::bench {

struct MaskOptions {
  std::filesystem::path model;  // the model whose tokens are used
  std::filesystem::path
      schemas;  // one line per schema: {"schema": TEXT, "tests": [{"valid": true, "text": TEXT}, …]}
};

/// Returns for each line: {"compile_us", "masks_us": [a time for each token], "wrong": [[test, valid,
/// accepted], …]}, and "refused" with the reason if the schema was refused. No schema reuses results of
/// another. A text ends with the end-of-text token, and its masks end at the first token that is not allowed.
nlohmann::json measure_masks(const MaskOptions& options);

}  // namespace staircase::bench
