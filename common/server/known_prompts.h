// Keeps the tokens of answers, so that the next turn of a conversation finds them in the cache.
#pragma once

#include <memory>
#include <vector>

#include "common/server/conversation.h"

namespace staircase {

class KnownTokens;

/// Does what step 95 teaches, for as many answers as a server has clients.
class KnownPrompts : public ChatPrompts {
 public:
  explicit KnownPrompts(const Tokenizer& tokenizer);
  ~KnownPrompts() override;

  std::vector<int> encode(const Rendered& prompt) override;
  std::vector<int> encode_anew(const Rendered& prompt) override { return encode_chat(tokenizer_, prompt); }
  void answered(const Rendered& prompt, const std::vector<int>& prompt_tokens,
                const std::vector<int>& answer) override;

 private:
  const Tokenizer& tokenizer_;
  std::unique_ptr<KnownTokens> known_;
};

}  // namespace staircase
