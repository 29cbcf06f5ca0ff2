// The defaults of chats: the sampling that a model's authors recommend, which options and requests override.
#pragma once

#include "common/base/options.h"
#include "common/model/generation_config.h"
#include "common/program/command_line.h"

namespace staircase {

// Both throw Error for a value that no option can have, and for tokens that must never be chosen: chats
// cannot suppress any.

/// For a chat at a terminal: new defaults for the options of `line`. A setting that the program has no option
/// for is moved to the others, and one whose option is given is left out.
GenerationConfig set_chat_defaults(CommandLine& line, GenerationConfig config);

/// For the chats of a server: keys of a request and their values in JSON. The server checks the values.
OptionTexts chat_request_defaults(const GenerationConfig& config);

}  // namespace staircase
