// Prompts for conversations: the part of a chat server that a step supplies.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/text/chat_template.h"

namespace staircase {

struct CallForm;

/// A client's messages, and the other variables that a template may read. They are JSON, which a step never
/// sees.
class Conversation {
 public:
  struct Json;

  /// `body` is a JSON object without null values. Throws HttpError for invalid messages and for unimplemented
  /// features.
  explicit Conversation(std::string_view body);
  ~Conversation();

  /// Renders the conversation with the template. Throws Error with one sentence, including when the template
  /// rejects it.
  Rendered rendered_by(const ChatTemplate& chat_template) const;

  /// Bytes of all contents.
  std::size_t bytes() const;

  /// Whether the model may call functions, or earlier answers have calls, whose form depends on the template.
  bool has_calls() const;

  /// For a template without a form of calls: writes functions, calls and results into the messages, the calls
  /// in `form`.
  void write_calls(const CallForm& form);

 private:
  std::unique_ptr<Json> json_;
};

/// Writes the prompts of conversations. One thread at a time calls its functions, and while the server runs
/// never the model thread: a slow template delays other chats, but no texts or other requests.
class ChatPrompts {
 public:
  virtual ~ChatPrompts() = default;

  /// The conversation as a text. Throws Error with one sentence if that is impossible.
  virtual Rendered render(const Conversation& conversation) = 0;

  /// The prompt's tokens.
  virtual std::vector<int> encode(const Rendered& prompt) = 0;

  /// The prompt's tokens for a model with an adapter, without the tokens of known answers.
  virtual std::vector<int> encode_anew(const Rendered& prompt) { return encode(prompt); }

  /// Receives the tokens of the model's answer, without the one that ended it. Called before the client gets
  /// the end of the answer, and so before the conversation can go on.
  virtual void answered(const Rendered& /*prompt*/, const std::vector<int>& /*prompt_tokens*/,
                        const std::vector<int>& /*answer*/) {}
};

}  // namespace staircase
