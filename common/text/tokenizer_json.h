// Reads tokenizer.json, the file of Hugging Face's tokenizers.
#pragma once

#include <string>
#include <string_view>

#include "common/text/tokenizer_description.h"

namespace staircase {

/// Reads the file's content. Throws Error with one sentence for broken or unsupported contents, such as a
/// model other than BPE, or an unsupported normalizer or pre-tokenizer. `file` is for messages.
TokenizerDescription read_tokenizer_json(std::string_view content, const std::string& file);

}  // namespace staircase
