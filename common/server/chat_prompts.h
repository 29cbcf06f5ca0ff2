// What a server of chats needs of a step: prompts for conversations.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/text/chat_template.h"

namespace staircase {

/// The messages of a client, and what else a template may read. They are JSON, of which a step sees nothing.
class Conversation {
 public:
  struct Json;

  /// `body` is a JSON object without null values. Throws HttpError for messages that are none, and for what
  /// is not implemented.
  explicit Conversation(std::string_view body);
  ~Conversation();

  /// What the template makes of it. Throws Error with one sentence, for what the template refuses as well.
  Rendered rendered_by(const ChatTemplate& chat_template) const;

  /// Bytes of all contents.
  std::size_t bytes() const;

 private:
  std::unique_ptr<Json> json_;
};

/// Writes the prompts of conversations. One thread calls all of it, which is not that of the model: so a slow
/// template stops neither the texts of others nor other requests.
class ChatPrompts {
 public:
  virtual ~ChatPrompts() = default;

  /// The conversation as a text. Throws Error with one sentence where that cannot be.
  virtual Rendered render(const Conversation& conversation) = 0;

  /// Its tokens.
  virtual std::vector<int> encode(const Rendered& prompt) = 0;

  /// The model has answered with these tokens, among which that of the end is not. It is called before the
  /// client has the end of the answer, and so before the conversation goes on.
  virtual void answered(const Rendered& /*prompt*/, const std::vector<int>& /*prompt_tokens*/,
                        const std::vector<int>& /*answer*/) {}
};

}  // namespace staircase
