// Keeps the tokens of texts that a model wrote: encoding such a text again may yield other tokens.
#pragma once

#include <algorithm>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/text/chat_template.h"

namespace staircase {

/// Remembers conversations with the tokens that the model saw and chose.
class KnownTokens {
 public:
  /// Keeps `most` texts; one more drops the oldest.
  explicit KnownTokens(std::size_t most = 64) : most_(most) {}

  struct KnownText {
    Rendered rendered;
    std::vector<int> tokens;
  };

  /// The oldest first.
  const std::deque<KnownText>& texts() const { return texts_; }

  /// Remembers the conversation `prompt`, its tokens and those of the model's answer, without the token that
  /// ended the answer.
  void remember(const Tokenizer& tokenizer, Rendered prompt, std::vector<int> tokens,
                std::span<const int> answer) {
    prompt = marks_alone(tokenizer, std::move(prompt));
    for (const int token : answer) prompt.text += tokenizer.bytes(token);
    prompt.own.resize(prompt.text.size(), false);  // not written by a template
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    if (texts_.size() == most_) texts_.pop_front();
    texts_.push_back({std::move(prompt), std::move(tokens)});
  }

  /// Like encode_chat(), but the longest known text at the start of the conversation keeps its tokens. The
  /// rest is encoded separately, so it must begin with a special token.
  std::vector<int> encode(const Tokenizer& tokenizer, const Rendered& rendered) const {
    const Rendered conversation = marks_alone(tokenizer, rendered);
    const KnownText* const known = longest_beginning(conversation);
    if (known == nullptr) return encode_chat(tokenizer, conversation);
    const std::size_t length = known->rendered.text.size();
    Rendered rest{conversation.text.substr(length), {}};
    rest.own.assign(conversation.own.begin() + static_cast<std::ptrdiff_t>(length), conversation.own.end());
    const std::vector<int> more = encode_chat(tokenizer, rest), special = tokenizer.special_tokens();
    if (more.empty() || std::ranges::count(special, more[0]) == 0)
      return encode_chat(tokenizer, conversation);
    std::vector<int> tokens = known->tokens;
    tokens.insert(tokens.end(), more.begin(), more.end());
    return tokens;
  }

 private:
  /// Whether `text` begins with `known`, special tokens included.
  static bool begins_with(const Rendered& text, const Rendered& known) {
    return text.text.starts_with(known.text) &&
           std::equal(known.own.begin(), known.own.end(), text.own.begin());
  }

  const KnownText* longest_beginning(const Rendered& conversation) const {
    const KnownText* longest = nullptr;
    for (const KnownText& known : texts_) {
      const bool is_longer =
          longest == nullptr || known.rendered.text.size() >= longest->rendered.text.size();
      if (is_longer && begins_with(conversation, known.rendered)) longest = &known;
    }
    return longest;
  }

  std::size_t most_;
  std::deque<KnownText> texts_;
};

}  // namespace staircase
