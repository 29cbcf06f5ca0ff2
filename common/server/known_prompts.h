// Keeps the tokens of answers, so that the next turn of a conversation finds them in the cache.
#pragma once

#include <vector>

#include "common/decoding/known_tokens.h"
#include "common/server/chat_prompts.h"

namespace staircase {

/// The lesson of step 95, for as many answers as a server has clients.
class KnownPrompts : public ChatPrompts {
 public:
  explicit KnownPrompts(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  std::vector<int> encode(const Rendered& prompt) override { return known_.encode(tokenizer_, prompt); }

  void answered(const Rendered& prompt, const std::vector<int>& prompt_tokens,
                const std::vector<int>& answer) override {
    known_.remember(tokenizer_, prompt, prompt_tokens, answer);
  }

 private:
  static constexpr std::size_t kMaxKept = 256;

  const Tokenizer& tokenizer_;
  KnownTokens known_{kMaxKept};
};

}  // namespace staircase
