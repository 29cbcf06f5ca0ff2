// How an answer looks in JSON: OpenAI has a form for completions and one for chats.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/decoding/results.h"
#include "common/text/tokenizer.h"

namespace staircase {

/// Log-probabilities, as lists in JSON without their brackets. A chat has only the first.
struct Told {
  std::string tokens = {}, token_logprobs = {}, top_logprobs = {}, text_offset = {};

  void add(const Told& more);
};

/// What is new of a text.
struct NewText {
  int index;
  std::string text = {};
  Told told = {};
  bool begins = false;  ///< nothing of it was sent before
  std::optional<FinishReason> end = {};
};

class ReplyForm {
 public:
  virtual ~ReplyForm() = default;

  /// What OpenAI calls an answer, or an event of a stream.
  virtual std::string_view object(bool stream) const = 0;

  /// The log-probabilities of a token, in front of which the text has `offset` characters.
  virtual Told tell(const Tokenizer& tokenizer, const Token& token, std::size_t offset) const = 0;

  /// Whether the end-of-text token that ends a text has log-probabilities.
  virtual bool tells_end() const = 0;

  /// A whole text.
  virtual std::string choice(NewText text) const = 0;

  /// The same in a stream: each choice becomes an event.
  virtual std::vector<std::string> choices(NewText text) const = 0;
};

const ReplyForm& completion_form();
const ReplyForm& chat_form();

/// A text in JSON, with quotation marks. What is not UTF-8 becomes U+FFFD.
std::string in_json(const std::string& text);

/// "stop", in JSON.
std::string_view in_json(std::optional<FinishReason> reason);

}  // namespace staircase
