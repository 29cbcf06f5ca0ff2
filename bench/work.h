// How much work a model is: the floating-point operations and the bytes without which the results cannot be
// computed. Any further work of an engine counts against it.
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

/// Operations of the four products of one block for one token, 2 per weight.
double block_operations(const ModelConfig& config);

/// Operations to predict the token after n tokens:
///
///   all blocks but the last    n · block_operations + 2 q n (n + 1) for the attention: query p sees p keys,
///   and
///                              each pair costs 2 q for the score and 2 q for the weighted sum of values
///   the last block             keys and values of all tokens, 4 d k n; all else only for the last token
///   output layer               2 d · vocab_size, for the last token
///
/// Norms, softmax and GELU are left out: a thousandth of the whole.
double prefill_operations(const ModelConfig& config, std::int64_t n);

/// Operations for one more token of a sequence whose cache holds n positions: all blocks, the attention on
/// n + 1 keys and values, and the output layer.
double decode_operations(const ModelConfig& config, double n);

/// Bytes to read for one more token of each of `rows` sequences at a context of n. All of them share one read
/// of the weights, except the rows of the position table, which is always float32. Each reads keys and values
/// of n + 1 tokens, in `cache_dtype`. Of a mixture, they read the experts that one of them chooses, by
/// chance.
double decode_bytes(const ModelConfig& config, std::size_t weight_bytes, DType cache_dtype, double n,
                    int rows = 1);

/// Sets the first `rows` rows back to that length, or forward again as far as they have ever been filled:
/// measures at any length without recomputing the prompt.
inline void set_lengths(KvCache& cache, int rows, int length) {
  for (int row = 0; row < rows; ++row) cache.truncate(row, length);
}

/// Tokens to measure with. Any do: no product is faster or slower for them.
std::vector<int> some_tokens(int count, int vocab_size);

}  // namespace staircase::bench
