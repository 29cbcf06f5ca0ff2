// The tokenizer and the chat template of a model in a GGUF file.
#pragma once

#include <optional>
#include <string>

#include "common/model/gguf.h"
#include "common/text/tokenizer_description.h"

namespace staircase {

/// Reads the tokenizer in the file's metadata. Throws Error with one sentence for missing, broken or
/// unsupported entries.
TokenizerDescription describe_gguf_tokenizer(const GgufFile& file);

/// The chat template, if the file has one.
std::optional<std::string> gguf_chat_template(const GgufFile& file);

}  // namespace staircase
