// The names of pre-tokenizers in GGUF files.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "common/text/tokenizer_description.h"

namespace staircase {

/// The meaning of such a name. Most names define only the patterns.
struct PreType {
  std::vector<Cut> cuts;
  bool nfc = false;            ///< texts are converted to normal form C
  bool ignore_merges = false;  ///< see TokenizerDescription
  bool adds_begin = false;     ///< default for whether a text begins with the begin-of-text token
};

/// The meaning of `name`, the tokenizer.ggml.pre of a file; nothing for an unknown name.
std::optional<PreType> pre_tokenizer_of(std::string_view name);

}  // namespace staircase
