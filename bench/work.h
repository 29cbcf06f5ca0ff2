// How much work a model requires: the floating-point operations and the bytes that any engine needs. Any
// further work counts against an engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/model/config.h"
#include "common/model/kv_cache.h"
#include "kernels/tensor.h"

namespace staircase::bench {

/// A product with a weight matrix [in, out].
struct Product {
  std::string name;
  std::int64_t in, out;
};

/// The four products of one block. d is n_embd, q and k are the widths of queries and keys. The products are
/// queries, keys and values [d, q + 2 k], attention's output [q, d], and the MLP's [d, n_inner] (twice as
/// wide with a gate) and [n_inner, d]. In a mixture, a token's experts count as one MLP.
std::vector<Product> block_products(const ModelConfig& config);

/// The operations of the four products of one block for one token, 2 per weight.
double block_operations(const ModelConfig& config);

/// The operations to predict the token after n tokens:
///
///   all blocks but the last    n · block_operations + 2 q n (n + 1) for attention: query p sees p keys, and
///                              each pair costs 2 q for the score and 2 q for the weighted sum of values
///   the last block             4 d k n for the keys and values of all tokens, the rest for the last one only
///   output layer               2 d · vocab_size, for the last token
///
/// Norms, softmax and GELU are left out, because they are a thousandth of the whole.
double prefill_operations(const ModelConfig& config, std::int64_t n);

/// The operations for one more token of a sequence whose cache holds n positions: all blocks, attention over
/// n + 1 keys and values, and the output layer.
double decode_operations(const ModelConfig& config, double n);

/// The bytes to read for one more token of each of `rows` sequences at a context of n. The sequences share
/// one read of the weights, except for rows of the position table, which is always float32. Each sequence
/// reads keys and values of n + 1 tokens in `cache_dtype`. In a mixture, they read every expert that at least
/// one of them chooses, assuming random choices.
double decode_bytes(const ModelConfig& config, std::size_t weight_bytes, DType cache_dtype, double n,
                    int rows = 1);

/// Sets the first `rows` rows to `length`, which may be any length up to the longest that they have ever had.
/// So any length can be measured without recomputing the prompt.
inline void set_lengths(KvCache& cache, int rows, int length) {
  for (int row = 0; row < rows; ++row) cache.truncate(row, length);
}

/// Returns tokens to measure with. Any tokens will do, because the speed of a product does not depend on
/// them.
std::vector<int> some_tokens(int count, int vocab_size);

}  // namespace staircase::bench
