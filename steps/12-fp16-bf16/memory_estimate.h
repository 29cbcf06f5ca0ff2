// Computes how much memory a model needs, before any of it is loaded.
#pragma once

#include <fmt/format.h>

#include <string>

#include "common/model/config.h"
#include "kernels/tensor.h"

namespace staircase {

/// Bytes of the weights. In each block, attention has n (2q + 2k) numbers (n = n_embd, q and k the widths of
/// queries and keys; 4n² in GPT-2) and the MLP 2nm or 3nm (m = n_inner). Vectors stay in float32.
inline std::size_t weight_bytes(const ModelConfig& config, DType dtype) {
  const std::size_t n = config.n_embd, m = config.n_inner, q = config.query_width(), k = config.key_width();
  const std::size_t matrices = config.n_layer * (n * (2 * q + 2 * k) + config.mlp_matrices * n * m);
  const std::size_t embeddings = (config.tie_word_embeddings ? 1 : 2) * config.vocab_size * n;
  return matrix_bytes(dtype, matrices) + matrix_bytes(embedding_dtype(dtype), embeddings) +
         config.vector_numbers * size_of(DType::kFloat32);
}

/// Bytes of the intermediate results of `n_tokens` tokens on a CPU. Each token has the residual stream,
/// query, key, value, attended values and the inside of the MLP. With rotary positions it also has the
/// unrotated query, key and value, and the rotations, and with experts their own results. The last token has
/// three more rows, and its logits.
inline std::size_t activation_bytes(const ModelConfig& config, int n_tokens) {
  const std::size_t n = config.n_embd, tokens = n_tokens, q = config.query_width(), k = config.key_width();
  const std::size_t turned = config.rotary_size > 0 ? q + 2 * k + config.rotary_size : 0;
  const std::size_t all = n + 2 * q + 2 * k + config.n_inner + turned + config.mixture_width();
  return (tokens * all + 2 * n + q + config.vocab_size) * size_of(DType::kFloat32);
}

/// Bytes of this many positions in a cache: a key and a value in each layer.
inline std::size_t cache_bytes(const ModelConfig& config, DType dtype, int positions) {
  return std::size_t{2} * config.n_layer * positions * config.key_bytes(dtype);
}

/// The estimate as one line of text.
inline std::string memory_estimate(const ModelConfig& config, DType dtype) {
  const auto mebibytes = [](std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  return fmt::format("by formula: weights {:.1f} MiB, activations up to {:.1f} MiB",
                     mebibytes(weight_bytes(config, dtype)),
                     mebibytes(activation_bytes(config, config.n_positions)));
}

}  // namespace staircase
