// Reads tokenizer_config.json, added_tokens.json and special_tokens_map.json, which Hugging Face's
// transformers adds to a tokenizer.
#pragma once

#include <string>
#include <string_view>

#include "common/text/tokenizer_description.h"

namespace staircase {

/// The class of transformers that tokenizer_config.json names, or "".
std::string tokenizer_class(std::string_view content, const std::string& file);

/// Adds the tokens that tokenizer_config.json lists under added_tokens_decoder.
void read_added_tokens_decoder(std::string_view content, const std::string& file,
                               TokenizerDescription& description);

/// Adds the tokens of added_tokens.json.
void read_added_tokens(std::string_view content, const std::string& file, TokenizerDescription& description);

/// Reads the special tokens from special_tokens_map.json, which older folders have.
void read_special_tokens_map(std::string_view content, const std::string& file,
                             TokenizerDescription& description);

/// Reads the special tokens from tokenizer_config.json, and every other setting that changes tokens. Call
/// this after all tokens have been added. Throws Error for broken or unsupported entries. `file` is for
/// messages.
void read_tokenizer_config(std::string_view content, const std::string& file,
                           TokenizerDescription& description);

}  // namespace staircase
