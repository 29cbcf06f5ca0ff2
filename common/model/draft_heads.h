// Draft heads (Cai et al. 2024, Medusa): small layers that predict further tokens from one hidden state.
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

/// Reads the heads of a folder with config.json and medusa_lm_head.safetensors, as Medusa names them: those
/// of the token after the next one, of the one after that, and so on. Numbers may be F32, F16 or BF16. Throws
/// Error with one sentence for a missing or broken file, a setting that is not supported, and no head. The
/// same for a tensor that is missing, superfluous, of another shape or not finite. The heads must belong to
/// this model: base_model_fnv1a is the hash of the bytes of its weights. Without that key, the last part of
/// base_model_name_or_path is its name.
std::vector<DraftHead> read_draft_heads(const Model& model, const std::filesystem::path& folder);

}  // namespace staircase
