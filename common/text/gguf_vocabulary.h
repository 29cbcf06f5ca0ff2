// The tokenizer in the metadata of a GGUF file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/text/tokenizer_description.h"

namespace staircase {

/// The keys that begin with tokenizer.ggml, as the file has them.
struct GgufVocabulary {
  std::string architecture = {};  ///< general.architecture
  std::string model = {};         ///< "gpt2": byte-level; "llama": SentencePiece
  std::string pre = {};           ///< the pre-tokenizer's name, or ""
  std::vector<std::string> tokens = {};
  std::vector<float> scores = {};        ///< of "llama" only, one a token
  std::vector<int> token_type = {};      ///< one a token, or none
  std::vector<std::string> merges = {};  ///< of "gpt2" only
  std::optional<int> bos_token_id = {};
  std::optional<bool> add_bos_token = {}, add_eos_token = {}, add_space_prefix = {};
};

/// Throws Error with one sentence for what is broken or not built. `file` is for messages.
TokenizerDescription describe(const GgufVocabulary& vocabulary, const std::string& file);

}  // namespace staircase
