// A run as one JSON object.
#pragma once

#include <string>

#include "common/program/transcript.h"
#include "common/text/tokenizer.h"

namespace staircase {

/// The object on one line: "sequences" with their tokens and texts, and "stats".
std::string to_json(const Transcript& transcript, const Tokenizer& tokenizer);

}  // namespace staircase
