// Scores an existing text: the log-probability of each token after those before it.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "common/decoding/results.h"
#include "common/model/model.h"
#include "logprobs.h"

namespace staircase {

/// Scores a text in one pass: its tokens, each with its log-probability after those before it and the `count`
/// most likely tokens at its position. The first token has no scores, nor do tokens before the last
/// n_positions, which the model does not see.
inline std::vector<Token> score(Model& model, std::span<const int> text, int count) {
  std::vector<Token> tokens;
  for (const int id : text) tokens.push_back({.id = id, .logprobs = Logprobs()});
  const std::size_t length = std::min<std::size_t>(text.size(), model.config().n_positions);
  const std::size_t first = text.size() - length, vocab_size = model.config().vocab_size;
  const std::span<const float> logits = model.last_logits(text.last(length), static_cast<int>(length));
  for (std::size_t i = 1; i < length; ++i) {  // logits [length, vocab_size]: row i - 1 predicts token i
    const std::vector<float> logprobs = log_softmax(logits.subspan((i - 1) * vocab_size, vocab_size));
    tokens[first + i].logprobs = logprobs_of(text[first + i], logprobs, count);
  }
  return tokens;
}

}  // namespace staircase
