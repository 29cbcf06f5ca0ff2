// Draft heads (Cai et al. 2024, Medusa): small layers that predict several further tokens from one hidden
// state.
#pragma once

#include <filesystem>
#include <vector>

#include "common/model/model.h"

namespace staircase {

/// Turns a hidden state h into h + SiLU(W h + b), which the output layer of the model then reads.
struct DraftHead {
  std::vector<float> weight;  ///< W, [n_embd, n_embd]: the numbers that multiply h[0], then those of h[1] ...
  std::vector<float> bias;    ///< b, [n_embd]
};

/// Reads heads from a folder with config.json and medusa_lm_head.safetensors, which are Medusa's names. The
/// first head predicts the token after the next one, the second head the token after that, and so on. Numbers
/// may be F32, F16 or BF16. Throws Error with one sentence for a missing or broken file, an unsupported
/// setting, a folder without heads, and a tensor that is missing, superfluous, of another shape or not
/// finite. Also throws Error if the heads belong to another model: base_model_fnv1a must be the hash of the
/// bytes of this model's weights. Without that key, the last part of base_model_name_or_path must be this
/// model's name.
std::vector<DraftHead> read_draft_heads(const Model& model, const std::filesystem::path& folder);

}  // namespace staircase
