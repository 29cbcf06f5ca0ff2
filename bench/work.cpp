#include "bench/work.h"

#include <cmath>

namespace staircase::bench {
namespace {

/// The share of a mixture's weights that no row reads: the experts that none of the rows chooses. If each row
/// chooses k of E experts at random, that is (1 - k / E)^rows of all experts.
double unread_share(const ModelConfig& config, int rows) {
  if (config.n_experts == 0) return 0.0;
  const double d = config.n_embd, q = config.query_width(), k = config.key_width();
  const double experts = 3.0 * config.n_experts * d * config.expert_inner;
  const double all = config.n_layer * (d * (2 * q + 2 * k) + experts) +
                     d * config.vocab_size * (config.tie_word_embeddings ? 1 : 2);
  return config.n_layer * experts / all *
         std::pow(1.0 - static_cast<double>(config.experts_per_token) / config.n_experts, rows);
}

}  // namespace

std::vector<Product> block_products(const ModelConfig& config) {
  // The experts of a token count as one MLP.
  const bool mixed = config.n_experts > 0;
  const std::int64_t d = config.n_embd;
  const std::int64_t inner = mixed ? config.experts_per_token * config.expert_inner : config.n_inner;
  const std::int64_t q = config.query_width(), k = config.key_width();
  return {{"queries, keys, values", d, q + 2 * k},
          {"attention output", q, d},
          {"MLP input", d, (config.mlp_matrices > 2 ? 2 : 1) * inner},
          {"MLP output", inner, d}};
}

double block_operations(const ModelConfig& config) {
  std::int64_t weights = 0;
  for (const Product& product : block_products(config)) weights += product.in * product.out;
  return 2.0 * static_cast<double>(weights);
}

double prefill_operations(const ModelConfig& config, std::int64_t n) {
  const double d = config.n_embd, q = config.query_width(), tokens = static_cast<double>(n);
  const double attention = 2 * q * tokens * (tokens + 1), keys_values = 4 * d * config.key_width();
  const double full_block = tokens * block_operations(config) + attention;
  const double last_block = tokens * keys_values + block_operations(config) - keys_values + 4 * q * tokens;
  return (config.n_layer - 1) * full_block + last_block + 2 * d * config.vocab_size;
}

double decode_operations(const ModelConfig& config, double n) {
  const double q = config.query_width();
  return config.n_layer * (block_operations(config) + 4 * q * (n + 1)) +
         2.0 * config.n_embd * config.vocab_size;
}

double decode_bytes(const ModelConfig& config, std::size_t weight_bytes, DType cache_dtype, double n,
                    int rows) {
  const bool has_table = config.rotary_size == 0;
  const double other_positions = has_table ? (config.n_positions - 1.0) * config.n_embd * sizeof(float) : 0.0;
  const double of_head = static_cast<double>(kept_size(cache_dtype, config.head_size)) *
                         static_cast<double>(size_of(cache_dtype));
  const double cache = 2.0 * config.n_layer * (n + 1) * config.n_kv_head * of_head;
  return static_cast<double>(weight_bytes) * (1.0 - unread_share(config, rows)) - other_positions +
         rows * cache;
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
