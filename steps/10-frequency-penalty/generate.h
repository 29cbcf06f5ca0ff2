// The generation loop: one token after the other.
#pragma once

#include <algorithm>
#include <vector>

#include "common/decoding/generation.h"
#include "common/model/gpt2.h"
#include "sampling.h"

namespace staircase {

struct GenerateOptions {
  int max_new_tokens = 100;
  bool ignore_eos = false;
  SamplingOptions sampling = {};
  unsigned seed = 0;
  int num_return_sequences = 1;
  int show_candidates = 0;
};

/// Continues `tokens` with one chosen token after the other; `on_token` sees each one as it is chosen.
inline Generation generate(Gpt2& model, std::vector<int> tokens, const GenerateOptions& options,
                           std::mt19937& generator, const OnToken& on_token) {
  const auto context = static_cast<std::size_t>(model.config().n_positions);
  for (int i = 0; i < options.max_new_tokens; ++i) {
    const std::span<const int> window = std::span(tokens).last(std::min(tokens.size(), context));
    const std::span<float> logits = model.next_logits(window);  // [vocab_size]
    process(logits, tokens, options.sampling);
    const int next = choose(logits, options.sampling, generator);
    tokens.push_back(next);
    on_token({next, likeliest(logits, options.show_candidates)});
    if (next == model.config().eos_token_id && !options.ignore_eos) return {tokens, FinishReason::kEos};
  }
  return {tokens, FinishReason::kLength};
}

}  // namespace staircase
