// How much memory a model needs, by formula: before any of it is loaded.
#pragma once

#include <fmt/format.h>

#include <string>

#include "common/model/config.h"
#include "kernels/tensor.h"

namespace staircase {

/// Bytes of the weights. The matrices are kept in `dtype`: 4n² + 2nm numbers in each block (n = n_embd,
/// m = n_inner), and the token embedding, vocab_size · n, which is the output layer as well. Biases, norms
/// and positions stay in float32.
inline std::size_t weight_bytes(const Gpt2Config& config, DType dtype) {
  const std::size_t n = config.n_embd, m = config.n_inner, layers = config.n_layer;
  const std::size_t matrices = layers * (4 * n * n + 2 * n * m), embedding = config.vocab_size * n;
  const std::size_t biases = layers * (3 * n + n + m + n), norms = (2 * layers + 1) * 2 * n;
  return matrix_bytes(dtype, matrices) + matrix_bytes(embedding_dtype(dtype), embedding) +
         (biases + norms + config.n_positions * n) * size_of(DType::kFloat32);
}

/// Bytes of the intermediate results on a CPU while `n_tokens` tokens go through the model: the residual
/// stream, queries, keys, values and attended values, [n_tokens, n_embd] each, and the inside of the MLP,
/// [n_tokens, n_inner]. The layers take turns in them. Of the last token there are three more rows, and the
/// logits, [vocab_size]. Left out is what the numbers of the tokens take, four bytes each.
inline std::size_t activation_bytes(const Gpt2Config& config, int n_tokens) {
  const std::size_t n = config.n_embd, tokens = n_tokens;
  return (tokens * (5 * n + config.n_inner) + 3 * n + config.vocab_size) * size_of(DType::kFloat32);
}

/// One line for a person.
inline std::string memory_estimate(const Gpt2Config& config, DType dtype) {
  const auto mebibytes = [](std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  return fmt::format("by formula: weights {:.1f} MiB, activations up to {:.1f} MiB",
                     mebibytes(weight_bytes(config, dtype)),
                     mebibytes(activation_bytes(config, config.n_positions)));
}

}  // namespace staircase
