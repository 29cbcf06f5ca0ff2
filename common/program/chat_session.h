// A conversation between a person and a model: questions, answers and commands. It needs no terminal.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/decoding/results.h"
#include "common/model/config.h"
#include "common/program/live_options.h"
#include "common/text/chat_template.h"
#include "common/text/tokenizer.h"

namespace staircase {

/// How a question was answered.
struct Answer {
  FinishReason finish_reason = FinishReason::kEos;
  int prompt_tokens = 0;     ///< tokens of the conversation up to the answer
  int cached_tokens = 0;     ///< prompt tokens that were in the cache
  int dropped_messages = 0;  ///< the number of oldest messages, which did not fit
};

/// Answers the last message, and calls `on_token` for each token as soon as it is chosen. If `on_token`
/// throws, the answer ends.
using AnswerMessages = std::function<Answer(const std::vector<Message>& messages, const OnToken& on_token)>;

/// Thrown by on_token when a person stops an answer.
struct AnswerInterrupted {};

/// The output of a conversation.
struct ChatOutput {
  std::function<void(const std::string& text)> print;  ///< a part of an answer, valid UTF-8
  std::function<void(const std::string& line)> note;   ///< messages of the program
  std::function<void()> check;                         ///< throws AnswerInterrupted if the answer must stop
  bool notes_use = false;                              ///< whether to report tokens and times
};

/// Stores a conversation between runs of its program.
struct ChatStore {
  std::vector<Message> messages = {};                                   ///< the first messages
  std::function<void(const std::vector<Message>& messages)> save = {};  ///< throws Error if saving fails
};

class ChatSession {
 public:
  /// `answer` and `settings` must outlive the session. If `system` is empty, only the stored conversation can
  /// provide a system message.
  ChatSession(const std::string& system, LiveOptions& settings, const Tokenizer& tokenizer, EndTokens ends,
              AnswerMessages answer, ChatOutput output, ChatStore store = {});

  /// Handles a question or a command; /help lists the commands. "//" begins a question with a slash. Pasted
  /// text is always a question, whatever it begins with. A mistake prints one line and changes nothing.
  /// Stores the conversation if it has changed. Returns false for /exit.
  bool take(const std::string& line, bool pasted = false);

  /// Answers a question. If that fails, throws Error and leaves the conversation unchanged. An interrupt
  /// before the answer's first character also leaves the conversation unchanged, but throws nothing.
  void ask(const std::string& question);

  /// Stores the conversation if there is a store and it lacks the newest messages. Throws Error if storing
  /// fails.
  void store();

  /// For tests.
  const std::vector<Message>& messages() const { return messages_; }

 private:
  bool obey(const std::string& line, bool pasted);
  bool run_command(const std::string& command, const std::string& argument);
  void set_system(const std::string& text);
  void reset();
  void undo();
  void save(const std::string& name) const;
  void load(const std::string& name);
  void set(const std::string& argument);
  void note_use(const Answer& answer, Clock::time_point start, Clock::time_point first, int tokens) const;

  LiveOptions& settings_;
  const Tokenizer& tokenizer_;
  EndTokens ends_;
  AnswerMessages answer_;
  ChatOutput output_;
  ChatStore store_;
  std::vector<Message> messages_;
};

}  // namespace staircase
