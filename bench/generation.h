// One run, as tools/bench --peers takes it of every engine. It measures the time until the first token after
// a long prompt, and the speed of greedy decoding after a short one and after a batch of them.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/tensor.h"

namespace staircase::bench {

struct GenerationOptions {
  std::filesystem::path model;
  std::filesystem::path prompts;  ///< JSON: {"prefill": [ids], "decode": [ids], "batch": [[ids], ..]}
  DType dtype = DType::kFloat32;
  int threads = 1;
  int new_tokens = 128;
};

/// {"prefill_ms": [..], "decode_tokens_per_s": .., "batch_tokens_per_s": .., "token_ids": [..], "gaps":
/// [..]}; a gap is the distance between the chosen logit and the next one, which tells a near-tie from a
/// mistake.
nlohmann::json measure_generation(const GenerationOptions& options);

}  // namespace staircase::bench
