// The generation loop: one token after another.
#pragma once

#include <algorithm>
#include <vector>

#include "common/base/error.h"
#include "common/decoding/results.h"
#include "common/model/model.h"
#include "text_options.h"

namespace staircase {

/// How a run of the program continues its prompts.
struct RunOptions {
  int num_return_sequences = 1;
  bool use_cache = true;
};

inline void add_options(OptionSink& sink, RunOptions& run) {
  sink.add("--num-return-sequences", &run.num_return_sequences, "number of continuations to sample",
           at_least(1));
  sink.add("--use-cache", &run.use_cache, "keep the keys and values of earlier tokens");
}

/// Rejects several greedy texts of one prompt, which would all be the same.
inline void refuse_equal_texts(OptionSink& sink, const RunOptions& run, const TextOptions& options) {
  sink.rule([&run, &options] {
    if (run.num_return_sequences > 1 && !options.sampling.do_sample) {
      throw UsageError(
          "--num-return-sequences {} needs --do-sample: without it all of them would be the same",
          run.num_return_sequences);
    }
  });
}

/// Continues `tokens` with one chosen token after another; `on_token` gets each one as it is chosen. The
/// cache must be empty at first. If it keeps nothing, the whole text goes through the model for each token.
inline Generation generate(Model& model, std::vector<int> tokens, const TextOptions& options, KvCache& cache,
                           std::mt19937& generator, const OnToken& on_token) {
  const auto context = static_cast<std::size_t>(model.config().n_positions);
  for (int count = 1; count <= options.stopping.max_new_tokens; ++count) {
    const std::span<const int> window = std::span(tokens).last(std::min(tokens.size(), context));
    if (cache.keeps() && tokens.size() > context) {
      throw Error("the cache is full: the model has {} positions; step 15-kv-cache-fix continues from there",
                  context);
    }
    // Only tokens that the cache lacks go through the model: first the prompt, then one token at a time.
    const std::span<const int> fed = window.subspan(cache.length(0));
    std::vector<float> logits = copy_of(model.next_logits(fed, cache));  // [vocab_size]
    process(logits, tokens, options.sampling);
    const int next = choose(logits, options.sampling, generator);
    tokens.push_back(next);
    on_token({next, likeliest(logits, options.sampling.show_candidates)});
    const auto reason = finish_reason(next, count, model.config().end_tokens, options.stopping);
    if (reason) return {tokens, *reason};
  }
  return {tokens, FinishReason::kLength};
}

}  // namespace staircase
