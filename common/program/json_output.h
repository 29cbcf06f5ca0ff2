// Writes a run as one JSON object.
#pragma once

#include <string>
#include <string_view>

#include "common/program/transcript.h"
#include "common/text/tokenizer.h"

namespace staircase {

/// "length", "eos" or "stop".
std::string_view to_string(FinishReason reason);

/// The whole run on one line: "sequences" with their tokens and texts, and "stats".
std::string to_json(const Transcript& transcript, const Tokenizer& tokenizer);

}  // namespace staircase
