// tokenizer.json, the file of Hugging Face's tokenizers.
#pragma once

#include <string>
#include <string_view>

#include "common/text/tokenizer_description.h"

namespace staircase {

/// Reads the file's content. Throws Error with one sentence for broken and unsupported contents: a model
/// other than BPE, a normalizer or a pre-tokenizer by its name. `file` is for messages.
TokenizerDescription read_tokenizer_json(std::string_view content, const std::string& file);

}  // namespace staircase
