// What a model shows of its forward passes to a watcher.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "common/model/attention_probe.h"
#include "common/model/kv_cache.h"

namespace staircase {

/// Receives intermediate results as they are computed: a name ("embeddings", "block.0" …, "ln_f": the last
/// norm) and the values, [rows, n_embd]. The rows are the new tokens of the pass; from the last block on,
/// only the tokens whose logits are wanted. Gemma's values, except ln_f, are divided by the scale of its
/// embeddings. For tests and for the curious: each call copies the values to the host.
using OnStage = std::function<void(std::string_view name, std::span<const float> values)>;

/// The experts that the rows of a pass chose in one block. The rows are the new tokens; in the last block,
/// only the tokens whose logits are wanted.
struct ChosenExperts {
  int block = 0;
  int per_token = 0;
  std::vector<std::int32_t> experts = {};  ///< [rows, per_token], the expert with the largest score first
};

/// A forward pass of a model.
struct ForwardPass {
  std::span<const std::span<const int>> sequences;  ///< the new tokens; a sequence without any rests
  std::span<const std::int32_t> starts;             ///< positions of each that the cache held before
  std::span<const int> counts;                      ///< the last counts[s] tokens of each have logits
  std::span<const float> logits;                    ///< [Σ counts, vocab_size]
  KvCache& cache;
  std::span<const AttentionWeights> attention;  ///< one entry per sequence if a head is watched
  std::span<const ChosenExperts> experts = {};  ///< one entry per block with a router
};

}  // namespace staircase
