// One run of our engine, like the runs of other engines in tools/bench --peers. It measures the time until
// the first token after the prompt "prefill" and after the prompt "decode". It also measures the speed of
// greedy decoding after the prompt "decode" and after a batch of prompts.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "kernels/tensor.h"

namespace staircase::bench {

struct GenerationOptions {
  std::filesystem::path model;
  /// JSON: {"prefill": [ids], "decode": [ids], "batch": [[ids], ..]}. An empty prefill or batch is skipped.
  std::filesystem::path prompts;
  DType dtype = DType::kFloat32;
  std::optional<DType> cache_dtype;  ///< without a value, the model's own type
  int threads = 1;
  int new_tokens = 128;
};

/// {"prefill_ms": [..], "prompt_ms": .., "decode_tokens_per_s": .., "batch_tokens_per_s": .., "token_ids":
/// [..], "gaps": [..]}. "prompt_ms" is the time until the first token after "decode". A gap is the distance
/// between the chosen logit and the next lower one. It distinguishes a near-tie from a mistake.
nlohmann::json measure_generation(const GenerationOptions& options);

}  // namespace staircase::bench
