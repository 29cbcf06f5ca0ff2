// Keeps the tokens of answers, so that the next turn of a conversation finds them in the cache.
#pragma once

#include <cstddef>
#include <vector>

#include "common/server/chat_prompts.h"
#include "known_tokens.h"

namespace staircase {

/// Of as many answers as a server has clients: the text of an answer need not have the tokens that the model
/// chose.
class KnownPrompts : public ChatPrompts {
 public:
  explicit KnownPrompts(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  std::vector<int> encode(const Rendered& prompt) override { return known_.encode(tokenizer_, prompt); }

  void answered(const Rendered& prompt, const std::vector<int>& prompt_tokens,
                const std::vector<int>& answer) override {
    known_.remember(tokenizer_, prompt, prompt_tokens, answer);
  }

 private:
  static constexpr std::size_t kMost = 256;

  const Tokenizer& tokenizer_;
  KnownTokens known_ = KnownTokens(kMost);
};

}  // namespace staircase
