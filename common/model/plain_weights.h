// The weights of any family as plain vectors with one set of names, so you can compare two families side by
// side. Also the settings that some of their plain passes need.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/llama3_scaling.h"
#include "common/model/model.h"

namespace staircase {

/// Features that some models of a family have, and that a plain pass has only if it declares them.
enum class Extra {
  kNone,
  kParallelBlocks,  ///< with the exact GELU, as all models of Pythia have both
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
/// and the same with .bias if the family has one. The other families' names are translated; queries, keys and
/// values are separate; and each matrix above has the order of its shape here, however the file stores it.
///
/// Throws Error for a model of another family, for a file that cannot be read, and for an extra that the
/// model has and the pass does not.
std::map<std::string, std::vector<float>> plain_weights(const Model& model, std::string_view family,
                                                        Extra extra = Extra::kNone);

/// Whether attention and MLP of a block read the same residual stream; GPT-NeoX alone.
bool has_parallel_blocks(const Model& model);

/// Whether the MLP has the exact GELU, not the one with tanh; GPT-NeoX only.
bool has_exact_gelu(const Model& model);

/// How the settings scale rotary positions: by a factor of 1 if they do not.
Llama3Scaling rotary_scaling(const Model& model);

}  // namespace staircase
