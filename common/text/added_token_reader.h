// Added tokens, as the files of a tokenizer write them. Only sources include this, like json_file.h.
#pragma once

#include <string>

#include "common/text/json_value.h"
#include "common/text/tokenizer_description.h"

namespace staircase {

AddedToken read_added_token(const JsonValue& token, int id);

/// Adds `token`, unless it is there already. Throws Error if its id means something else. `file` is for the
/// message.
void add_token(const AddedToken& token, const std::string& file, TokenizerDescription& description);

}  // namespace staircase
