// Keeps the tokens of answers, so that the next turn of a conversation finds them in the cache.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

#include "common/server/chat_prompts.h"

namespace staircase {

/// For as many answers as a server has clients: encoding the text of an answer may yield other tokens than
/// the model chose. Step 95 teaches the same for one person at a terminal.
class KnownPrompts : public ChatPrompts {
 public:
  explicit KnownPrompts(const Tokenizer& tokenizer)
      : tokenizer_(tokenizer), special_(tokenizer.special_tokens()) {}

  std::vector<int> encode(const Rendered& prompt) override {
    const Rendered whole = marks_alone(tokenizer_, prompt);
    const Known* longest = nullptr;
    for (const Known& known : all_) {
      const std::size_t least = longest == nullptr ? 0 : longest->rendered.text.size();
      if (known.rendered.text.size() >= least && begins_with(whole, known.rendered)) longest = &known;
    }
    return longest == nullptr ? encode_chat(tokenizer_, prompt) : continued(*longest, whole);
  }

  void answered(const Rendered& prompt, const std::vector<int>& prompt_tokens,
                const std::vector<int>& answer) override {
    Known known{marks_alone(tokenizer_, prompt), prompt_tokens};
    for (const int token : answer) known.rendered.text += tokenizer_.bytes(token);
    known.rendered.own.resize(known.rendered.text.size());  // not written by a template
    known.tokens.insert(known.tokens.end(), answer.begin(), answer.end());
    if (all_.size() == kMaxKept) all_.pop_front();
    all_.push_back(std::move(known));
  }

 private:
  struct Known {
    Rendered rendered;  // with only the markers of special tokens
    std::vector<int> tokens;
  };

  static constexpr std::size_t kMaxKept = 256;

  static bool begins_with(const Rendered& whole, const Rendered& part) {
    return whole.text.starts_with(part.text) &&
           std::equal(part.own.begin(), part.own.end(), whole.own.begin());
  }

  /// The tokens of `known`, and those of the rest. If no special token separates them, text may merge across
  /// the border, so the whole is encoded.
  std::vector<int> continued(const Known& known, const Rendered& whole) const {
    const std::size_t length = known.rendered.text.size();
    const std::vector<int> rest = encode_chat(
        tokenizer_,
        {whole.text.substr(length),
         std::vector<bool>(whole.own.begin() + static_cast<std::ptrdiff_t>(length), whole.own.end())});
    if (rest.empty() || std::ranges::count(special_, rest.front()) == 0)
      return encode_chat(tokenizer_, whole);
    std::vector<int> tokens = known.tokens;
    tokens.insert(tokens.end(), rest.begin(), rest.end());
    return tokens;
  }

  const Tokenizer& tokenizer_;
  const std::vector<int> special_;
  std::deque<Known> all_;
};

}  // namespace staircase
