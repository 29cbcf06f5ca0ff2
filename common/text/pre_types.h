// The names that GGUF files have for pre-tokenizers.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "common/text/tokenizer_description.h"

namespace staircase {

/// What a name stands for. Only the patterns are more than a default.
struct PreType {
  std::vector<Cut> cuts;
  bool nfc = false;            ///< texts are brought into normal form C
  bool ignore_merges = false;  ///< see TokenizerDescription
  bool adds_begin = false;     ///< a text begins with the begin-of-text token unless the file says otherwise
};

/// What `name`, the tokenizer.ggml.pre of a file, stands for; nothing for an unknown one.
std::optional<PreType> pre_tokenizer_of(std::string_view name);

}  // namespace staircase
