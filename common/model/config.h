// The facts about a model: its family and its sizes, as stated in Hugging Face's config.json or in a GGUF
// file.
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
  EndTokens(int token) {  // one; none if it is -1
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
  int mlp_matrices = 2;            ///< of all MLPs of a block, each two, or three with a gate
  int n_experts = 0;               ///< MLPs in a block with a router, which chooses among them; 0: no router
  int experts_per_token = 0;       ///< how many it chooses
  int expert_inner = 0;            ///< width of an expert
  int rotary_size = 0;             ///< features of a head that positions rotate; 0 if positions have a table
  double rope_theta = 0.0;         ///< pair i rotates by rope_theta^(-2i / rotary_size) per position
  std::size_t vector_numbers = 0;  ///< in biases, norms, routers and the table of positions: in float32
  float norm_epsilon = 1e-5f;
  int eos_token_id = 0;       ///< the end-of-text token, the first one of several; -1: no text ends itself
  EndTokens end_tokens = {};  ///< all tokens that end a text
  bool tie_word_embeddings = true;  ///< the token embedding may serve as the output layer
  /// How many positions each layer sees; empty if all layers see all.
  std::vector<std::int32_t> windows = {};
  /// The type of keys and values in a cache, unless it follows from that of the weights.
  std::optional<DType> cache_dtype = {};
  /// For the user: settings without effect here, and limits.
  std::vector<std::string> remarks = {};

  /// Width of the queries.
  int query_width() const { return n_head * head_size; }

  /// How many positions that layer sees at most.
  std::int32_t window(int layer) const {
    return windows.empty() ? kNoWindow : windows[static_cast<std::size_t>(layer)];
  }

  /// Width of the keys, and of the values.
  int key_width() const { return n_kv_head * head_size; }

  /// The type of keys and values in a cache, for weights of that type.
  DType kv_dtype(DType weights) const;

  /// The bytes of a token's keys, and of its values, in one layer of a cache, for weights of that type.
  std::size_t key_bytes(DType weights) const {
    const DType dtype = kv_dtype(weights);
    return static_cast<std::size_t>(n_kv_head * kept_size(dtype, head_size)) * size_of(dtype);
  }

  /// Numbers that a token has beyond those of an MLP if there are experts: its normed row and the router's
  /// scores. For each chosen expert come a copy of that row, a result and four more.
  std::size_t mixture_width() const {
    const auto width = static_cast<std::size_t>(n_embd);
    if (n_experts == 0) return 0;
    return width + static_cast<std::size_t>(n_experts) +
           static_cast<std::size_t>(experts_per_token) * (2 * width + 4);
  }
};

/// The type of keys and values that follows from that of the weights: the same, or bfloat16 for int8 and
/// int4.
constexpr DType kv_dtype(DType weights) {
  return is_quantized(weights) ? DType::kBFloat16 : weights;
}

inline DType ModelConfig::kv_dtype(DType weights) const {
  return cache_dtype.value_or(staircase::kv_dtype(weights));
}

/// The type of the token embedding, which is also the output layer, for weights of that type. It is the same,
/// or int8 for int4: 4 bits there alone would add 1 % to the perplexity of tales-6m.
constexpr DType embedding_dtype(DType weights) {
  return weights == DType::kInt4 ? DType::kInt8 : weights;
}

/// Reads config.json of a model's folder, with the end tokens of its generation_config.json, or the metadata
/// of a .gguf file. Throws Error with one sentence for a missing file, broken JSON, a family or a setting
/// that is not supported, and impossible values (zero, negative, heads that do not divide the width).
ModelConfig read_config(const std::filesystem::path& model);

}  // namespace staircase
