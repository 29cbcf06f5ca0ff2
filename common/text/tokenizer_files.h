// The files of a model's folder that define its tokenizer.
#pragma once

#include <filesystem>

#include "common/text/tokenizer_description.h"

namespace staircase {

/// Reads the metadata of a .gguf file, or the files of a folder: tokenizer.json, otherwise vocab.json and
/// merges.txt; then tokenizer_config.json, added_tokens.json and special_tokens_map.json, if they exist.
/// Throws Error with one sentence for missing, broken or unsupported files.
TokenizerDescription describe_tokenizer(const std::filesystem::path& folder);

}  // namespace staircase
