#include "bench/work.h"

namespace staircase::bench {

std::vector<Product> block_products(const Gpt2Config& config) {
  const std::int64_t d = config.n_embd, inner = config.n_inner;
  return {{"queries, keys, values", d, 3 * d},
          {"attention output", d, d},
          {"MLP input", d, inner},
          {"MLP output", inner, d}};
}

double block_operations(const Gpt2Config& config) {
  std::int64_t weights = 0;
  for (const Product& product : block_products(config)) weights += product.in * product.out;
  return 2.0 * static_cast<double>(weights);
}

double prefill_operations(const Gpt2Config& config, std::int64_t n) {
  const double d = config.n_embd, tokens = static_cast<double>(n);
  const double attention = 2 * d * tokens * (tokens + 1);
  const double full_block = tokens * block_operations(config) + attention;
  const double last_block = tokens * 4 * d * d + block_operations(config) - 4 * d * d + 4 * d * tokens;
  return (config.n_layer - 1) * full_block + last_block + 2 * d * config.vocab_size;
}

double decode_operations(const Gpt2Config& config, double n) {
  const double d = config.n_embd;
  return config.n_layer * (block_operations(config) + 4 * d * (n + 1)) + 2 * d * config.vocab_size;
}

double decode_bytes(const Gpt2Config& config, std::size_t weight_bytes, DType cache_dtype, double n,
                    int rows) {
  const double d = config.n_embd;
  const double other_positions = (config.n_positions - 1) * d * sizeof(float);
  const double cache = 2 * config.n_layer * (n + 1) * d * static_cast<double>(size_of(cache_dtype));
  return static_cast<double>(weight_bytes) - other_positions + rows * cache;
}

std::vector<int> some_tokens(int count, int vocab_size) {
  std::vector<int> tokens(static_cast<std::size_t>(count));
  std::uint32_t state = 1;
  for (int& token : tokens) {
    state = state * 1664525u + 1013904223u;
    token = static_cast<int>((state >> 8) % static_cast<std::uint32_t>(vocab_size));
  }
  return tokens;
}

}  // namespace staircase::bench
