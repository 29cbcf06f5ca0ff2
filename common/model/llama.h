// The weights of Llama, and of the families that build on its block, on a device.
#pragma once

#include <vector>

#include "common/model/model.h"
#include "common/model/weights.h"

namespace staircase {

/// Weights that a family lacks are empty, and the operations skip them.
struct LlamaWeights {
  struct Block {
    Norm input_norm;
    Linear attention_input;     ///< [n_embd, (n_head + 2 n_kv_head) head_size]: queries, keys and values
    Norm query_norm, key_norm;  ///< norms of each head
    Linear attention_output;    ///< [n_head head_size, n_embd]
    Norm attention_norm;        ///< norm of the result that attention adds
    Norm mlp_norm;
    Linear mlp_input = {};   ///< [n_embd, 2 n_inner or more]: the gate and what it gates: see kGateColumns
    Linear mlp_output = {};  ///< [n_inner, n_embd]
    Norm mlp_output_norm;    ///< norm of the result that the MLP adds
    /// A mixture of experts instead of the MLP; empty in a block without one.
    struct Expert {
      Linear input, output;  ///< as mlp_input and mlp_output, with the width expert_inner
    };
    std::vector<Expert> experts = {};
    Linear router = {};       ///< [n_embd, n_experts]
    std::int64_t rotary = 0;  ///< index of the network's rotation for this block
  };
  Embeddings embeddings;
  std::vector<Block> blocks;
  Norm final_norm;
};

/// The weights of a loaded model; valid as long as the model. Throws Error for GPT-2, GPT-NeoX, Gemma 3 and
/// mixtures of experts, whose blocks differ.
const LlamaWeights& llama_weights(const Model& model);

}  // namespace staircase
