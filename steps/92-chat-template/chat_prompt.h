// Turns a question into the text that the model was trained to answer.
#pragma once

#include <string>
#include <vector>

#include "common/base/message.h"
#include "common/program/program.h"
#include "common/text/chat_template.h"

namespace staircase {

struct ChatPromptOptions {
  bool chat = false;
  std::string system = {};
  std::string chat_template = {};
};

inline void add_options(Program& program, ChatPromptOptions& options) {
  program.use_generation_config(&options.chat);
  program.add("--chat", &options.chat, "answer the prompt: put it into the model's chat template");
  program.add("--system", Path{&options.system, "TEXT", true}, "the system message of the chat");
  program.add("--chat-template", Path{&options.chat_template, "FILE"},
              "a Jinja template in place of the model's own");
  program.warn_if([&] { return !options.chat && !(options.system.empty() && options.chat_template.empty()); },
                  "--system and --chat-template do nothing without --chat");
}

/// The messages of a conversation that begins with this question.
inline std::vector<Message> messages_of(const std::string& system, const std::string& question) {
  std::vector<Message> messages;
  if (!system.empty()) messages.push_back({"system", system});
  messages.push_back({"user", question});
  return messages;
}

/// The tokens of a question, up to the place where the answer begins. The markers of the template become
/// special tokens; the same text in the question stays text.
inline std::vector<int> chat_prompt(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                    const ChatPromptOptions& options, const std::string& question) {
  const Rendered rendered = chat_template.render(messages_of(options.system, question));
  return encode_chat(tokenizer, rendered);
}

}  // namespace staircase
