// One text of an answer as it grows: how much of it a client may already see, and where its tokens begin.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/decoding/results.h"
#include "common/decoding/text_stream.h"
#include "common/server/call_split.h"
#include "common/server/completion_request.h"
#include "common/server/reasoning.h"
#include "common/server/reply_form.h"

namespace staircase {

/// Counts the characters of bytes that arrive in pieces.
class CharacterCount {
 public:
  explicit CharacterCount(std::size_t complete = 0) : complete_(complete) {}

  /// Adds the bytes of a token. Returns the number of characters before it: a token may begin within one.
  std::size_t add(std::string_view bytes);

  std::size_t complete() const { return complete_; }

  /// The number of characters, including one whose last bytes are missing.
  std::size_t length() const { return complete_ + !unfinished_.empty(); }

 private:
  void push(std::string_view bytes);

  std::size_t complete_;
  std::string unfinished_ = {};
};

/// A prompt with its log-probabilities, as the beginning of an answer.
struct PromptEcho {
  std::shared_ptr<const std::vector<Token>> prompt;
  std::string text = {};
  LogprobJson logprobs = {};
};

/// The echo of a prompt, which all of its texts share.
PromptEcho echo_of(std::shared_ptr<const std::vector<Token>> prompt, const Tokenizer& tokenizer,
                   const ReplyForm& form);

class ReplyText {
 public:
  /// Set `keeps_ids` if shown_ids() will be called. All references must outlive this object.
  ReplyText(int index, const CompletionRequest& request, const ServedModel& model, const ReplyForm& form,
            bool keeps_ids);

  void add_echo(const PromptEcho& echo);
  void add(const Token& token);
  void end(FinishReason reason);

  int index() const { return index_; }
  bool has_ended() const { return end_.has_value(); }

  /// New tokens, including an end-of-text token.
  int tokens() const { return tokens_; }

  /// Whether there is something new for the client.
  bool has_news() const { return !part_.empty() || !logprobs_.tokens.empty() || end_; }

  /// Returns the part that was not taken yet.
  NewText take_news();

  /// The new tokens whose whole text the client gets: a stop sequence may begin within a token.
  std::vector<int> shown_ids() const;

 private:
  void show(const std::string& added);
  void add_first_held(std::size_t offset);

  const int index_;
  const Tokenizer& tokenizer_;
  const ReplyForm& form_;
  const bool has_logprobs_, keeps_ids_;
  TextStream stream_;
  CharacterCount count_{};  // counts all tokens, including those that a stop sequence may cut off
  std::optional<ReasoningSplit> split_ = {};
  std::optional<CallSplit> calls_ = {};
  std::string part_ = {};
  LogprobJson logprobs_ = {};
  std::size_t shown_ = 0;                                // characters of all parts
  std::deque<std::pair<Token, std::size_t>> held_ = {};  // tokens whose text is withheld, and their offsets
  std::optional<Token> pending_end_ = {};                // an end-of-text token that may be text
  int tokens_ = 0;
  bool begins_ = true;       // whether nothing was taken yet
  std::string answer_ = {};  // the whole text shown so far, and its tokens, if they are needed
  std::vector<int> ids_ = {};
  std::optional<FinishReason> end_ = {};
};

}  // namespace staircase
