// A conversation at the terminal, or with --prompt and pipes.
#pragma once

#include <string>
#include <vector>

#include "common/model/model.h"
#include "common/program/chat_session.h"
#include "common/program/program.h"
#include "common/text/grammar_rules.h"

namespace staircase {

struct ChatOptions {
  std::vector<std::string> prompts = {};  ///< questions to ask, one after another
  std::string system = {};
  std::string chat_template = {};  ///< a file, instead of the model's own template
  bool show_use = false;
  std::string json_schema = {};  ///< a file
  GrammarRules rules = {};       ///< of the schema; empty for any answer
  std::string session = {};      ///< a file
  ChatStore store = {};          ///< set by a program that keeps the session there
};

/// Also lets the model's generation_config.json choose the defaults of the options declared before.
void add_options(Program& program, ChatOptions& options);

/// --session, of a program that keeps conversations.
void add_session_option(Program& program, ChatOptions& options);

/// Asks the questions of `options`, and lets each answer follow the schema if there is one. Without any, a
/// person at a terminal asks until Ctrl-D, and the whole input of a pipe is one question. Ctrl-C is heard
/// between two parts of what `model` computes, too. Throws Error if a question that was not typed at a
/// terminal gets no answer, or cannot be stored with it.
void hold_conversation(const ChatOptions& options, LiveOptions& settings, const Tokenizer& tokenizer,
                       Model& model, const AnswerMessages& answer);

}  // namespace staircase
