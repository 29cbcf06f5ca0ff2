// Log-probabilities: what the model itself thinks of a token, whatever the options make of it.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <vector>

#include "common/base/message.h"
#include "common/decoding/generation.h"
#include "common/decoding/probabilities.h"
#include "common/model/gpt2.h"
#include "common/program/output.h"
#include "kernels/device.h"

namespace staircase {

/// ln softmax(logits), [vocab_size]: logits[i] - max - ln Σ exp(logits[j] - max). With the largest logit at 0
/// no exponential overflows, and no logarithm is taken of a probability that was rounded to 0.
inline std::vector<float> log_softmax(std::span<const float> logits) {
  const int best = argmax(logits);
  const double log_sum = -std::log(softmax(logits)[best]);  // its probability is exp(0) / Σ
  std::vector<float> logprobs(logits.begin(), logits.end());
  for (float& logprob : logprobs) logprob = static_cast<float>(logprob - logits[best] - log_sum);
  return logprobs;
}

/// What the model says of `token` and of the `count` likeliest tokens, where `logprobs`, [vocab_size], are
/// those of all; among equals the lowest id comes first.
inline Logprobs logprobs_of(int token, std::span<const float> logprobs, int count) {
  Logprobs result{logprobs[token]};
  for (const int id : highest(logprobs, count)) result.likeliest.push_back({id, logprobs[id]});
  return result;
}

/// The tokens of a text with their log-probabilities, each behind those before it, from one pass of the model
/// over all of them. The first has none, nor have those in front of the last n_positions, which the model
/// does not see.
inline std::vector<Token> score(Gpt2& model, std::span<const int> text, int count) {
  std::vector<Token> tokens;
  for (const int id : text) tokens.push_back({.id = id, .logprobs = Logprobs()});
  const std::size_t length = std::min<std::size_t>(text.size(), model.config().n_positions);
  const std::size_t first = text.size() - length, vocab_size = model.config().vocab_size;
  const std::span<const float> logits = model.last_logits(text.last(length), static_cast<int>(length));
  for (std::size_t i = 1; i < length; ++i) {  // logits [length, vocab_size]: row i - 1 is about token i
    const std::vector<float> logprobs = log_softmax(logits.subspan((i - 1) * vocab_size, vocab_size));
    tokens[first + i].logprobs = logprobs_of(text[first + i], logprobs, count);
  }
  return tokens;
}

/// exp(-mean log-probability) of the tokens that have one (Jelinek et al. 1977): as uncertain as a choice
/// among so many equally likely tokens. Nothing for a text of one token.
inline std::optional<double> perplexity(std::span<const Token> tokens) {
  double sum = 0.0;
  int count = 0;
  for (const Token& token : tokens) {
    if (!token.logprobs->own) continue;
    sum += *token.logprobs->own;
    ++count;
  }
  if (count == 0) return std::nullopt;
  return std::exp(-sum / count);
}

/// Shows the prompts themselves, with the `count` likeliest tokens in the place of each.
inline void echo(Gpt2& model, const Prompts& prompts, int count, Output& output) {
  for (int i = 0; i < std::ssize(prompts); ++i) {
    const std::vector<Token> tokens = score(model, prompts[i], count);
    const std::optional<double> surprise = perplexity(tokens);
    output.echo(i, tokens, surprise);
    if (surprise) say(fmt::format("perplexity of prompt {}: {:.4f}", i + 1, *surprise));
  }
}

}  // namespace staircase
