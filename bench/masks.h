// What it costs to keep texts to a schema: compiling it, and a mask before each token.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace staircase::bench {

struct MaskOptions {
  std::filesystem::path model;  // whose tokens are used
  std::filesystem::path
      schemas;  // a line each: {"schema": TEXT, "tests": [{"valid": true, "text": TEXT}, …]}
};

/// For each line: {"compile_us", "masks_us": [a time for each token], "wrong": [[test, valid, accepted], …]},
/// and "refused" with the reason if the schema was. Each schema begins with nothing computed; a text ends
/// with the end-of-text token, and its masks end at the first token that is not allowed.
nlohmann::json measure_masks(const MaskOptions& options);

}  // namespace staircase::bench
