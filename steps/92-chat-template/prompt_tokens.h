// Shows the tokens of a prompt.
#pragma once

#include <string>
#include <vector>

#include "common/base/message.h"
#include "common/text/tokenizer.h"

namespace staircase {

/// Prints a line for each token on standard error: its id and its text in quotes.
inline void show_tokens(const Tokenizer& tokenizer, const std::vector<int>& tokens) {
  for (const int token : tokens)
    say(fmt::format("{:>6}  {}", token, quoted(std::string(tokenizer.bytes(token)))));
}

}  // namespace staircase
