// The defaults of chats: the sampling that a model's authors recommend. Options and requests override them.
#pragma once

#include "common/base/options.h"
#include "common/model/generation_config.h"
#include "common/program/command_line.h"

namespace staircase {

// Both functions throw Error for a value that no option can have, and for a list of tokens to suppress: chats
// cannot suppress tokens.

/// For a chat at a terminal: sets new defaults for the options of `line`. Returns `config` without the
/// settings whose options were given; settings for which the program has no option move to `others`.
GenerationConfig set_chat_defaults(CommandLine& line, GenerationConfig config);

/// For the chats of a server: returns keys of a request and their values in JSON. The server checks the
/// values.
OptionTexts chat_request_defaults(const GenerationConfig& config);

}  // namespace staircase
