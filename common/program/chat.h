// Holds a conversation at the terminal, or through --prompt and pipes.
#pragma once

#include <string>
#include <vector>

#include "common/model/model.h"
#include "common/program/chat_session.h"
#include "common/program/program.h"
#include "common/text/grammar_rules.h"

namespace staircase {

struct ChatOptions {
  std::vector<std::string> prompts = {};  ///< questions, asked one after another
  std::string system = {};
  std::string chat_template = {};  ///< a file with a template that replaces the model's own
  bool show_use = false;
  std::string json_schema = {};  ///< a file
  GrammarRules rules = {};       ///< rules of the schema; empty if any answer is allowed
  std::string session = {};      ///< a file
  ChatStore store = {};          ///< set by a program that stores conversations in `session`
};

/// Declares the options of a chat. Also lets the model's generation_config.json set the defaults of all
/// options declared earlier.
void add_options(Program& program, ChatOptions& options);

/// Declares --session, for a program that stores conversations.
void add_session_option(Program& program, ChatOptions& options);

/// Asks the questions in `options`; every answer follows the schema if there is one. Without questions, a
/// person asks at the terminal until Ctrl-D, or the whole input of a pipe is one question. Ctrl-C also
/// interrupts `model` between two parts of a long prompt. Throws Error if a question that was not typed at a
/// terminal gets no answer, or if the conversation cannot be stored.
void hold_conversation(const ChatOptions& options, LiveOptions& settings, const Tokenizer& tokenizer,
                       Model& model, const AnswerMessages& answer);

}  // namespace staircase
