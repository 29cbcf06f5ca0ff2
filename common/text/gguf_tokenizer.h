// The tokenizer and the chat template of a model in a GGUF file.
#pragma once

#include <optional>
#include <string>

#include "common/model/gguf.h"
#include "common/text/tokenizer_description.h"

namespace staircase {

/// What the file's metadata says of its tokenizer. Throws Error with one sentence for what is missing, broken
/// or not supported.
TokenizerDescription describe_gguf_tokenizer(const GgufFile& file);

/// The template of a conversation, if the file has one.
std::optional<std::string> gguf_chat_template(const GgufFile& file);

}  // namespace staircase
