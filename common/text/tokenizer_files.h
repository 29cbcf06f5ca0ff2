// The files of a model's folder that say what its tokenizer is.
#pragma once

#include <filesystem>

#include "common/text/tokenizer_description.h"

namespace staircase {

/// Reads the metadata of a .gguf file; or a folder's tokenizer.json, or else vocab.json and merges.txt, then
/// tokenizer_config.json, added_tokens.json and special_tokens_map.json, if they are there. Throws Error with
/// one sentence for what is missing, broken or not built.
TokenizerDescription describe_tokenizer(const std::filesystem::path& folder);

}  // namespace staircase
