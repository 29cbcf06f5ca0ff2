// tokenizer_config.json, added_tokens.json and special_tokens_map.json: the additions of Hugging Face's
// transformers to a tokenizer.
#pragma once

#include <string>
#include <string_view>

#include "common/text/tokenizer_description.h"

namespace staircase {

/// Which of the classes of transformers tokenizer_config.json names, or "".
std::string tokenizer_class(std::string_view content, const std::string& file);

/// Adds the tokens that tokenizer_config.json lists as added_tokens_decoder.
void read_added_tokens_decoder(std::string_view content, const std::string& file,
                               TokenizerDescription& description);

/// Adds the tokens of added_tokens.json.
void read_added_tokens(std::string_view content, const std::string& file, TokenizerDescription& description);

/// Reads the special tokens, and the end token, from special_tokens_map.json, which older folders have.
void read_special_tokens_map(std::string_view content, const std::string& file,
                             TokenizerDescription& description);

/// The same from tokenizer_config.json, with everything else that changes tokens. All tokens must be there by
/// then. Throws Error for broken or unsupported entries. `file` is for messages.
void read_tokenizer_config(std::string_view content, const std::string& file,
                           TokenizerDescription& description);

}  // namespace staircase
