// Keeps the tokens of answers, so that the next turn of a conversation finds them in the cache.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "common/server/chat_prompts.h"
#include "known_tokens.h"

namespace staircase {

/// Of as many answers as a server has clients: the text of an answer need not have the tokens that the model
/// chose.
class KnownPrompts : public ChatPrompts {
 public:
  explicit KnownPrompts(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  std::vector<int> encode(const Rendered& prompt) override {
    return known_.encode(tokenizer_, with_marks_alone(prompt));
  }

  void answered(const Rendered& prompt, const std::vector<int>& prompt_tokens,
                const std::vector<int>& answer) override {
    known_.remember(tokenizer_, with_marks_alone(prompt), prompt_tokens, answer);
  }

 private:
  static constexpr std::size_t kMost = 256;

  /// The same prompt, whose tokens are the same, with the flags of its special tokens alone. The others are
  /// not comparable: most templates write "assistant" themselves where an answer begins, and take it from the
  /// message when it has become one.
  Rendered with_marks_alone(Rendered prompt) const {
    std::vector<bool> marks(prompt.text.size());
    for (const int token : tokenizer_.special_tokens()) {
      const std::string_view mark = tokenizer_.bytes(token);
      if (mark.empty()) continue;
      for (std::size_t at = 0; (at = prompt.text.find(mark, at)) != prompt.text.npos; ++at) {
        const auto begin = prompt.own.begin() + static_cast<std::ptrdiff_t>(at);
        const auto end = begin + static_cast<std::ptrdiff_t>(mark.size());
        if (!std::all_of(begin, end, std::identity())) continue;
        std::fill_n(marks.begin() + static_cast<std::ptrdiff_t>(at), mark.size(), true);
      }
    }
    prompt.own = std::move(marks);
    return prompt;
  }

  const Tokenizer& tokenizer_;
  KnownTokens known_ = KnownTokens(kMost);
};

}  // namespace staircase
