// The weights of any family as plain vectors with one set of names, so that you can compare two families side
// by side. Also some settings that plain passes need.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/llama3_scaling.h"
#include "common/model/model.h"

namespace staircase {

/// Features that only some models of a family have. A plain pass must declare the one that it supports.
enum class Extra {
  kNone,
  kParallelBlocks,  ///< with the exact GELU, since every Pythia model has both
  kScaledRotation,
};

/// All weights of a model in float32, by Llama's names. In block N, names begin with "layers.N.":
///
///   embed_tokens.weight                [vocab_size, n_embd]
///   embed_positions.weight             [n_positions, n_embd], GPT-2 alone
///   input_layernorm.weight             [n_embd]
///   self_attn.q_proj.weight            [n_embd, n_head · head_size]
///   self_attn.k_proj.weight, v_proj    [n_embd, n_kv_head · head_size]
///   self_attn.q_norm.weight, k_norm    [head_size], Qwen3 alone
///   self_attn.o_proj.weight            [n_head · head_size, n_embd]
///   post_attention_layernorm.weight    [n_embd]
///   mlp.gate_proj.weight, up_proj      [n_embd, n_inner]; gate_proj where the MLP has a gate
///   mlp.down_proj.weight               [n_inner, n_embd]
///   mlp.gate.weight                    [n_embd, n_experts]: the router of a block with experts, whose
///   mlp.experts.E.gate_proj.weight …   are as in an MLP, with the width of an expert
///   norm.weight                        [n_embd]
///   lm_head.weight                     [vocab_size, n_embd]; the token embedding where the two are tied
///
/// Biases have the same names with .bias instead of .weight. The names of other families are translated;
/// queries, keys and values are separate; and every matrix has the shape in this list, however the file
/// stores it.
///
/// Throws Error for a model of another family, a file that cannot be read, and an extra that the model has
/// but the pass does not declare.
std::map<std::string, std::vector<float>> plain_weights(const Model& model, std::string_view family,
                                                        Extra extra = Extra::kNone);

/// Whether the attention and the MLP of a block read the same residual stream; only for GPT-NeoX.
bool has_parallel_blocks(const Model& model);

/// Whether the MLP uses the exact GELU instead of the tanh approximation; only for GPT-NeoX.
bool has_exact_gelu(const Model& model);

/// How the settings scale rotary positions; a factor of 1 means no scaling.
Llama3Scaling rotary_scaling(const Model& model);

}  // namespace staircase
