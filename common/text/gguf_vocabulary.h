// The tokenizer in the metadata of a GGUF file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/text/tokenizer_description.h"

namespace staircase {

/// The keys that begin with tokenizer.ggml, with their values from the file.
struct GgufVocabulary {
  std::string architecture = {};  ///< general.architecture
  std::string model = {};         ///< "gpt2": byte-level; "llama": SentencePiece
  std::string pre = {};           ///< the pre-tokenizer's name, or ""
  std::vector<std::string> tokens = {};
  std::vector<float> scores = {};        ///< only for "llama", one per token
  std::vector<int> token_type = {};      ///< one per token, or empty
  std::vector<std::string> merges = {};  ///< only for "gpt2"
  std::optional<int> bos_token_id = {};
  std::vector<int> end_ids = {};  ///< eos_token_id, eot_token_id and eom_token_id, if they are set
  std::optional<bool> add_bos_token = {}, add_eos_token = {}, add_space_prefix = {};
};

/// Builds the description of the tokenizer. Throws Error with one sentence for broken or unsupported entries.
/// `file` is for messages.
TokenizerDescription describe(const GgufVocabulary& vocabulary, const std::string& file);

}  // namespace staircase
