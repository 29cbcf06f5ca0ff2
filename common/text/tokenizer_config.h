// tokenizer_config.json and added_tokens.json: what Hugging Face's transformers adds to a tokenizer.
#pragma once

#include <string>
#include <string_view>

#include "common/text/tokenizer_description.h"

namespace staircase {

/// Which of the classes of transformers tokenizer_config.json names, or "".
std::string tokenizer_class(std::string_view config, const std::string& file);

/// Puts what tokenizer_config.json says into `description`. Throws Error for what is broken and for what
/// would change tokens and is not built. `file` is for messages.
void read_tokenizer_config(std::string_view config, const std::string& file,
                           TokenizerDescription& description);

/// Adds the tokens of added_tokens.json that `description` lacks.
void read_added_tokens(std::string_view content, const std::string& file, TokenizerDescription& description);

}  // namespace staircase
