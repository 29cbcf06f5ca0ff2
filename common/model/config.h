// The facts about a model: its family and its sizes, as Hugging Face's config.json or a GGUF file states
// them.
#pragma once

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device.h"

namespace staircase {

/// The tokens that end a text: none, one or several.
class EndTokens {
 public:
  EndTokens() = default;
  EndTokens(int token) {  // a single token; a negative one means none
    if (token >= 0) tokens_.push_back(token);
  }
  EndTokens(std::initializer_list<int> tokens) : tokens_(tokens) {}
  explicit EndTokens(std::vector<int> tokens) : tokens_(std::move(tokens)) {}

  bool contains(int token) const { return std::ranges::count(tokens_, token) > 0; }
  bool empty() const { return tokens_.empty(); }
  auto begin() const { return tokens_.begin(); }
  auto end() const { return tokens_.end(); }
  void add(int token) {
    if (!contains(token)) tokens_.push_back(token);
  }

  bool operator==(const EndTokens&) const = default;

 private:
  std::vector<int> tokens_;
};

struct ModelConfig {
  std::string family = {};         ///< model_type: "gpt2", "llama" ...
  int vocab_size = 0;              ///< rows of the token embedding
  int n_positions = 0;             ///< the context: the longest sequence the model can see
  int n_embd = 0;                  ///< width of the residual stream
  int n_layer = 0;                 ///< number of blocks
  int n_head = 0;                  ///< heads of queries
  int n_kv_head = 0;               ///< heads of keys and values; n_head is a multiple of it
  int head_size = 0;               ///< features of a head
  int n_inner = 0;                 ///< width of the MLP
  int mlp_matrices = 2;            ///< matrices in all MLPs of a block: two per MLP, or three with a gate
  int n_experts = 0;               ///< MLPs in a block with a router; 0 without a router
  int experts_per_token = 0;       ///< how many MLPs the router chooses for a token
  int expert_inner = 0;            ///< width of an expert
  int rotary_size = 0;             ///< features of a head that positions rotate; 0 for a table of positions
  double rope_theta = 0.0;         ///< pair i rotates by rope_theta^(-2i / rotary_size) per position
  std::size_t vector_numbers = 0;  ///< numbers that stay float32: biases, norms, routers, positions
  float norm_epsilon = 1e-5f;
  int eos_token_id = 0;       ///< the end-of-text token, or the first of several; -1 if the model has none
  EndTokens end_tokens = {};  ///< all tokens that end a text
  bool tie_word_embeddings = true;  ///< whether the token embedding may serve as the output layer
  /// How many positions each layer sees; empty if every layer sees all positions.
  std::vector<std::int32_t> windows = {};
  /// The type of keys and values in a cache; without a value, the type of the weights decides.
  std::optional<DType> cache_dtype = {};
  /// Remarks for the user: settings that have no effect here, and limits.
  std::vector<std::string> remarks = {};

  /// Width of the queries.
  int query_width() const { return n_head * head_size; }

  /// The most positions that this layer sees.
  std::int32_t window(int layer) const {
    return windows.empty() ? kNoWindow : windows[static_cast<std::size_t>(layer)];
  }

  /// Width of the keys; the values are as wide.
  int key_width() const { return n_kv_head * head_size; }

  /// The type of keys and values in a cache if the weights have the type `weights`.
  DType kv_dtype(DType weights) const;

  /// The bytes of one token's keys in one layer of a cache; its values need as many. `weights` is the type of
  /// the weights.
  std::size_t key_bytes(DType weights) const {
    const DType dtype = kv_dtype(weights);
    return static_cast<std::size_t>(n_kv_head * kept_size(dtype, head_size)) * size_of(dtype);
  }

  /// Numbers that a token needs in addition to an MLP's if there are experts: its normed row and the router's
  /// scores. Each chosen expert adds a copy of that row, a result and four more numbers.
  std::size_t mixture_width() const {
    const auto width = static_cast<std::size_t>(n_embd);
    if (n_experts == 0) return 0;
    return width + static_cast<std::size_t>(n_experts) +
           static_cast<std::size_t>(experts_per_token) * (2 * width + 4);
  }
};

/// The default type of keys and values: the type of the weights, or bfloat16 for weights in int8 and int4.
constexpr DType kv_dtype(DType weights) {
  return is_quantized(weights) ? DType::kBFloat16 : weights;
}

inline DType ModelConfig::kv_dtype(DType weights) const {
  return cache_dtype.value_or(staircase::kv_dtype(weights));
}

/// The type of the token embedding, which is also the output layer: the type of the weights, or int8 for
/// weights in int4. With 4 bits in this matrix alone, the perplexity of tales-6m would be 1 % higher.
constexpr DType embedding_dtype(DType weights) {
  return weights == DType::kInt4 ? DType::kInt8 : weights;
}

/// Reads config.json from a model's folder and the end tokens from its generation_config.json, or reads the
/// metadata of a .gguf file. Throws Error with one sentence for a missing file, broken JSON, an unsupported
/// family or setting, and impossible values (zero, negative, heads that do not divide the width).
ModelConfig read_config(const std::filesystem::path& model);

}  // namespace staircase
