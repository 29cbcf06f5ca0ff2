// How much memory a model needs, by formula: before any of it is loaded.
#pragma once

#include <fmt/format.h>

#include <string>

#include "common/model/config.h"
#include "kernels/tensor.h"

namespace staircase {

/// Bytes of the weights. The matrices are kept in `dtype`: those of attention, n (2q + 2k) numbers in each
/// block (n = n_embd, q and k the widths of queries and keys; in GPT-2 that is 4n²), those of the MLP, 2nm
/// or, with a gate, 3nm (m = n_inner), and the token embedding, vocab_size · n, which may be the output layer
/// as well. Biases, norms and a table of positions stay in float32.
inline std::size_t weight_bytes(const ModelConfig& config, DType dtype) {
  const std::size_t n = config.n_embd, m = config.n_inner, q = config.query_width(), k = config.key_width();
  const std::size_t matrices = config.n_layer * (n * (2 * q + 2 * k) + config.mlp_matrices * n * m);
  const std::size_t embeddings = (config.tie_word_embeddings ? 1 : 2) * config.vocab_size * n;
  return matrix_bytes(dtype, matrices) + matrix_bytes(embedding_dtype(dtype), embeddings) +
         config.vector_numbers * size_of(DType::kFloat32);
}

/// Bytes of the intermediate results on a CPU while `n_tokens` tokens go through the model: of each token the
/// residual stream, its query, key, value and attended values, and the inside of the MLP; with rotary
/// positions also query, key and value before they are turned, and the turns. The layers take turns in them.
/// Of the last token there are three more rows, and the logits, [vocab_size]. Left out is what the numbers of
/// the tokens take, four bytes each.
inline std::size_t activation_bytes(const ModelConfig& config, int n_tokens) {
  const std::size_t n = config.n_embd, tokens = n_tokens, q = config.query_width(), k = config.key_width();
  const std::size_t turned = config.rotary_size > 0 ? q + 2 * k + config.rotary_size : 0;
  return (tokens * (n + 2 * q + 2 * k + config.n_inner + turned) + 2 * n + q + config.vocab_size) *
         size_of(DType::kFloat32);
}

/// Bytes of the keys and values of so many positions: two vectors in each layer, in the type that goes with
/// that of the weights.
inline std::size_t cache_bytes(const ModelConfig& config, DType dtype, int positions) {
  return std::size_t{2} * config.n_layer * positions * config.key_width() * size_of(kv_dtype(dtype));
}

/// One line for a person.
inline std::string memory_estimate(const ModelConfig& config, DType dtype) {
  const auto mebibytes = [](std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  return fmt::format("by formula: weights {:.1f} MiB, activations up to {:.1f} MiB",
                     mebibytes(weight_bytes(config, dtype)),
                     mebibytes(activation_bytes(config, config.n_positions)));
}

}  // namespace staircase
