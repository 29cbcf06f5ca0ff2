// The generation loop: one token after another.
#pragma once

#include <algorithm>
#include <vector>

#include "common/decoding/results.h"
#include "common/model/model.h"
#include "text_options.h"

namespace staircase {

/// Continues `tokens` with the most likely token, again and again; `on_token` gets each one as it is chosen.
inline Generation generate(Model& model, std::vector<int> tokens, const TextOptions& options,
                           const OnToken& on_token) {
  const auto context = static_cast<std::size_t>(model.config().n_positions);
  for (int count = 1; count <= options.stopping.max_new_tokens; ++count) {
    const std::span<const int> window = std::span(tokens).last(std::min(tokens.size(), context));
    std::vector<float> logits = copy_of(model.next_logits(window));  // [vocab_size]
    process(logits, options.sampling);
    const int next = argmax(logits);
    tokens.push_back(next);
    on_token({next, likeliest(logits, options.sampling.show_candidates)});
    const auto reason = finish_reason(next, count, model.config().end_tokens, options.stopping);
    if (reason) return {tokens, *reason};
  }
  return {tokens, FinishReason::kLength};
}

}  // namespace staircase
