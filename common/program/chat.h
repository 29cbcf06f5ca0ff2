// A conversation at the terminal, or with --prompt and pipes.
#pragma once

#include <string>
#include <vector>

#include "common/base/options.h"
#include "common/program/chat_session.h"

namespace staircase {

struct ChatOptions {
  std::vector<std::string> prompts = {};  ///< questions that are asked one after the other
  std::string system = {};
  std::string chat_template = {};  ///< a file, in place of the model's own template
  bool show_use = false;
};

void add_options(OptionSink& sink, ChatOptions& options);

/// Asks the questions of `options`. Without any, a person at a terminal asks until Ctrl-D, and what comes
/// through a pipe is one question. Throws Error where a question that was not typed at a terminal has no
/// answer.
void hold_conversation(const ChatOptions& options, LiveOptions& settings, const Tokenizer& tokenizer,
                       const EndTokens& ends, const AnswerMessages& answer);

}  // namespace staircase
