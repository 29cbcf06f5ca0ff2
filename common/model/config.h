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
  int eos_token_id = 0;             ///< the end-of-text token, or -1: no text ends by itself
  bool tie_word_embeddings = true;  ///< the token embedding may serve as the output layer
  /// Settings that are on, and with which transformers does something more, or the same in another way.
  std::vector<std::string> without_effect = {};

  int head_size() const { return n_embd / n_head; }
};

/// The type of keys and values beside weights of that type: the same, or bfloat16 beside int8 and int4, which
/// attention does not take.
constexpr DType kv_dtype(DType weights) {
  return in_groups(weights) ? DType::kBFloat16 : weights;
}

/// The type of the token embedding, which is the output layer as well, beside other weights of that type: the
/// same, or int8 beside int4: in 4 bits it alone would add 1 % to the perplexity of tales-6m.
constexpr DType embedding_dtype(DType weights) {
  return weights == DType::kInt4 ? DType::kInt8 : weights;
}

/// Reads `folder`/config.json. Throws Error with one sentence for a missing file, broken JSON, a model that
/// is not a GPT-2 (model_type, activation_function) or is quantized, and values that cannot be (zero,
/// negative, n_embd not divisible by n_head). An eos_token_id of null is none; where the file has no such
/// key, it is the id that vocab.json gives <|endoftext|>.
Gpt2Config read_config(const std::filesystem::path& folder);

}  // namespace staircase
