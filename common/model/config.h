// The shape of a GPT-2, as Hugging Face's config.json states it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace staircase {

struct Gpt2Config {
  int vocab_size = 0;   ///< rows of the token embedding
  int n_positions = 0;  ///< the context: the longest sequence the model can see
  int n_embd = 0;       ///< width of the residual stream
  int n_layer = 0;      ///< number of blocks
  int n_head = 0;       ///< attention heads; n_embd is a multiple of it
  int n_inner = 0;      ///< width of the MLP, 4 × n_embd unless the file says otherwise
  float layer_norm_epsilon = 1e-5f;
  int eos_token_id = 0;             ///< the end-of-text token
  bool tie_word_embeddings = true;  ///< the token embedding may serve as the output layer
  /// Settings that are on, and with which transformers does something more, or the same in another way.
  std::vector<std::string> without_effect = {};

  int head_size() const { return n_embd / n_head; }
};

/// The type of keys and values beside weights of that type: the same, or bfloat16 beside int8, which
/// attention does not take.
constexpr DType kv_dtype(DType weights) {
  return weights == DType::kInt8 ? DType::kBFloat16 : weights;
}

/// Reads `folder`/config.json. Throws Error with one sentence for a missing file, broken JSON, a model that
/// is not a GPT-2 (model_type, activation_function) or is quantized, and values that cannot be (zero,
/// negative, n_embd not divisible by n_head).
Gpt2Config read_config(const std::filesystem::path& folder);

}  // namespace staircase
