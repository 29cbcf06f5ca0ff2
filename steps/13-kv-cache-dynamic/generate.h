// The generation loop: one token after the other.
#pragma once

#include <algorithm>
#include <vector>

#include "common/base/error.h"
#include "common/decoding/generation.h"
#include "common/model/gpt2.h"
#include "kv_cache.h"
#include "sampling.h"

namespace staircase {

struct GenerateOptions {
  int max_new_tokens = 100;
  bool ignore_eos = false;
  SamplingOptions sampling = {};
  unsigned seed = 0;
  int num_return_sequences = 1;
  int show_candidates = 0;
  bool use_cache = true;
};

/// Continues `tokens` with one chosen token after the other; `on_token` sees each one as it is chosen.
inline Generation generate(Gpt2& model, std::vector<int> tokens, const GenerateOptions& options,
                           std::mt19937& generator, const OnToken& on_token) {
  const auto context = static_cast<std::size_t>(model.config().n_positions);
  std::optional<DynamicKvCache> cache;
  if (options.use_cache) cache.emplace(model);
  for (int i = 0; i < options.max_new_tokens; ++i) {
    const std::span<const int> window = std::span(tokens).last(std::min(tokens.size(), context));
    if (cache && tokens.size() > context) {
      throw Error("the cache is full: {} positions are all that the model has; step 15 goes on from there",
                  context);
    }
    // With a cache only new tokens go through the model: the prompt, and then one token at a time.
    const std::span<const int> fresh = i == 0 ? window : window.last(1);
    const std::span<float> logits =  // [vocab_size]
        cache ? model.next_logits(fresh, *cache) : model.next_logits(window);
    process(logits, tokens, options.sampling);
    const int next = choose(logits, options.sampling, generator);
    tokens.push_back(next);
    on_token({next, likeliest(logits, options.show_candidates)});
    if (next == model.config().eos_token_id && !options.ignore_eos)
      return {tokens, FinishReason::kEos, cache ? cache->use() : CacheUse()};
  }
  return {tokens, FinishReason::kLength, cache ? cache->use() : CacheUse()};
}

}  // namespace staircase
