// A chat server needs this from a step: prompts for conversations.
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

  /// Renders it with the template. Throws Error with one sentence, also if the template rejects the
  /// conversation.
  Rendered rendered_by(const ChatTemplate& chat_template) const;

  /// Bytes of all contents.
  std::size_t bytes() const;

  /// Whether there are functions that the model may call, or calls of earlier answers: their form is the
  /// template's.
  bool has_calls() const;

  /// For a template that knows no calls: functions, calls and results become texts of the messages, the calls
  /// in that form.
  void write_calls(const CallForm& form);

 private:
  std::unique_ptr<Json> json_;
};

/// Writes the prompts of conversations. One thread calls all functions at a time. While the server runs it is
/// not the model's: a slow template lets other chats wait, but neither texts nor other requests.
class ChatPrompts {
 public:
  virtual ~ChatPrompts() = default;

  /// The conversation as a text. Throws Error with one sentence if that is impossible.
  virtual Rendered render(const Conversation& conversation) = 0;

  /// Its tokens.
  virtual std::vector<int> encode(const Rendered& prompt) = 0;

  /// The same for a model with an adapter, without those of known answers.
  virtual std::vector<int> encode_anew(const Rendered& prompt) { return encode(prompt); }

  /// The model has answered with these tokens, without the one that ended it. Called before the client gets
  /// the end of the answer, and so before the conversation goes on.
  virtual void answered(const Rendered& /*prompt*/, const std::vector<int>& /*prompt_tokens*/,
                        const std::vector<int>& /*answer*/) {}
};

}  // namespace staircase
