// The generation loop: one token after the other.
#pragma once

#include <algorithm>
#include <vector>

#include "common/decoding/generation.h"
#include "common/model/gpt2.h"
#include "kv_cache.h"
#include "sampling.h"

namespace staircase {

/// What happens when the context of the model is full.
enum class Overflow {
  kSlide,      ///< the oldest token leaves the cache, and the others move up as they are: cheap, not exact
  kRecompute,  ///< the cache is filled anew with the last tokens
};

struct GenerateOptions {
  int max_new_tokens = 100;
  bool ignore_eos = false;
  SamplingOptions sampling = {};
  unsigned seed = 0;
  int num_return_sequences = 1;
  int show_candidates = 0;
  bool use_cache = true;
  Overflow on_overflow = Overflow::kSlide;
  std::optional<int> refill = {};  ///< with how many tokens the cache is filled anew; all that fit
  std::string drift = {};          ///< file for the plot of what sliding costs
};

/// Makes room for the `fresh` tokens at the end of `window`, the last tokens of the text, in a cache that may
/// be full. Returns the tokens to feed to the model.
inline std::span<const int> make_room(std::span<const int> fresh, std::span<const int> window,
                                      StaticKvCache& cache, int row, const GenerateOptions& options) {
  const auto needed = static_cast<int>(fresh.size());
  const int free = cache.capacity() - cache.length(row);
  if (needed <= free) return fresh;
  if (options.on_overflow == Overflow::kSlide) {
    cache.slide(row, needed - free);
    return fresh;
  }
  cache.truncate(row, 0);
  return window.last(std::min<std::size_t>(options.refill.value_or(cache.capacity()), window.size()));
}

/// Continues `tokens` with one chosen token after the other; `on_token` sees each one as it is chosen.
inline Generation generate(Gpt2& model, std::vector<int> tokens, const GenerateOptions& options,
                           std::mt19937& generator, const OnToken& on_token) {
  const auto context = static_cast<std::size_t>(model.config().n_positions);
  std::optional<StaticKvCache> cache;
  if (options.use_cache) cache.emplace(model);
  for (int i = 0; i < options.max_new_tokens; ++i) {
    const std::span<const int> window = std::span(tokens).last(std::min(tokens.size(), context));
    // With a cache only new tokens go through the model: the prompt, and then one token at a time.
    const std::span<const int> fresh = i == 0 ? window : window.last(1);
    const std::span<float> logits =  // [vocab_size]
        cache ? model.next_logits(make_room(fresh, window, *cache, 0, options), *cache)
              : model.next_logits(window);
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
