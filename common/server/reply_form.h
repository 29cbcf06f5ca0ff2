// The form of an answer in JSON: OpenAI has one for completions and one for chats.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/decoding/results.h"
#include "common/server/call_split.h"
#include "common/text/tokenizer.h"

namespace staircase {

/// Log-probabilities, as JSON lists without their brackets. A chat has only `tokens`.
struct LogprobJson {
  std::string tokens = {}, token_logprobs = {}, top_logprobs = {}, text_offset = {};

  void add(const LogprobJson& more);
};

/// The new part of a text.
struct NewText {
  int index;
  std::string text = {};
  LogprobJson logprobs = {};
  std::optional<std::string> reasoning = {};        ///< if requested; then it is not in `text`
  std::optional<std::vector<CallPart>> calls = {};  ///< if calls are allowed; then they are not in `text`
  bool has_called = false;                          ///< in this part or an earlier one
  bool begins = false;                              ///< whether this is the first part
  std::optional<int> votes = {};                    ///< votes for this text, if there was a vote
  std::optional<FinishReason> end = {};
};

class ReplyForm {
 public:
  virtual ~ReplyForm() = default;

  /// OpenAI's name of an answer, or of an event of a stream.
  virtual std::string_view object(bool stream) const = 0;

  /// The log-probabilities of a token; the text has `offset` characters before it.
  virtual LogprobJson format(const Tokenizer& tokenizer, const Token& token, std::size_t offset) const = 0;

  /// Whether the end-of-text token that ends a text has log-probabilities.
  virtual bool formats_end() const = 0;

  /// A whole text.
  virtual std::string choice(NewText text) const = 0;

  /// The choices of a part of a stream, each of which becomes an event.
  virtual std::vector<std::string> choices(NewText text) const = 0;
};

const ReplyForm& completion_form();
const ReplyForm& chat_form();

/// The end of a choice with the votes for it, in JSON.
std::string votes_json(const NewText& text);

/// A finish reason in JSON, such as "stop"; null without one.
std::string_view in_json(std::optional<FinishReason> reason);

}  // namespace staircase
