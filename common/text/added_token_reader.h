// Reads added tokens in the form that a tokenizer's files use. Like json_file.h, only sources include this
// header.
#pragma once

#include <string>

#include "common/text/json_value.h"
#include "common/text/tokenizer_description.h"

namespace staircase {

AddedToken read_added_token(const JsonValue& token, int id);

/// Adds `token` to the description unless it already contains the token. Throws Error if its id already
/// belongs to another token. `file` is for the message.
void add_token(const AddedToken& token, const std::string& file, TokenizerDescription& description);

}  // namespace staircase
