// Turns a conversation into the prompt that a model, which only continues texts, needs in order to answer.
#pragma once

#include <optional>
#include <string>

#include "common/base/message.h"
#include "common/server/adapter_options.h"
#include "common/server/known_prompts.h"

namespace staircase {

struct ChatOptions : AdapterOptions {
  std::string chat_template = {};
};

inline void add_options(OptionSink& sink, ChatOptions& options) {
  sink.add("--chat-template", Path{&options.chat_template, "FILE"},
           "a Jinja template in place of the model's own");
  add_options(sink, static_cast<AdapterOptions&>(options));
}

/// Writes conversations with the model's own template, which opens the answer at the end.
class Chat : public KnownPrompts {
 public:
  /// A model without a template is still served, and so is one whose own template is unusable.
  Chat(const std::string& model, const Tokenizer& tokenizer, const ChatOptions& options)
      : KnownPrompts(tokenizer) {
    const std::string& file = options.chat_template;
    if (!file.empty()) template_ = ChatTemplate::load(find_model(model), file);
    try {
      if (file.empty()) template_ = ChatTemplate::load(find_model(model));
    } catch (const Error& error) {
      refusal_ = error.what();
      warn("{}; without --chat-template FILE the server only continues texts", refusal_);
    }
  }

  Rendered render(const Conversation& conversation) override {
    if (!template_) throw Error(refusal_);
    return conversation.rendered_by(*template_);
  }

 private:
  std::optional<ChatTemplate> template_ = {};
  std::string refusal_ = "this model continues texts; it was not trained to answer: use /v1/completions";
};

}  // namespace staircase
