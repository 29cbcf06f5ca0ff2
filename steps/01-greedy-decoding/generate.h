// The generation loop: one token after another.
#pragma once

#include <vector>

#include "common/base/error.h"
#include "common/decoding/results.h"
#include "common/model/model.h"
#include "stopping.h"

namespace staircase {

/// Continues `tokens` with the most likely token, again and again; `on_token` gets each one as it is chosen.
inline Generation generate(Model& model, std::vector<int> tokens, const StoppingOptions& stopping,
                           const OnToken& on_token) {
  const int context = model.config().n_positions;
  // The model never sees the last token, so it needs no position.
  if (const auto length = std::ssize(tokens) + stopping.max_new_tokens; length > context + 1) {
    throw UsageError(
        "with --max-new-tokens {}, prompt and text have {} tokens together, but the model's context has "
        "{}; use fewer, or take step 03-context-window",
        stopping.max_new_tokens, length, context);
  }
  for (int count = 1; count <= stopping.max_new_tokens; ++count) {
    const std::span<const float> logits = model.next_logits(tokens);  // [vocab_size]
    const int next = argmax(logits);
    tokens.push_back(next);
    on_token({next});
  }
  return {tokens, FinishReason::kLength};
}

}  // namespace staircase
