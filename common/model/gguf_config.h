// Reads the configuration of a model from a GGUF file, in the form of Hugging Face's config.json. Only
// sources include this header, and it is not installed: users of the library do not depend on our JSON
// parser.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/model/gguf.h"

namespace staircase {

struct GgufConfig {
  nlohmann::json settings;           ///< the keys of config.json, in the spelling of transformers 5
  std::vector<std::string> remarks;  ///< for the user: what the file leaves open, and what is assumed
};

/// Throws Error with one sentence that names the file, the key and an impossible value. Possible but
/// unsupported values are rejected later, by the reader of config.json.
GgufConfig gguf_config(const GgufFile& file);

/// The tokens that end a text: the ones that the metadata names, and all end markers of the vocabulary,
/// because the metadata has few keys for them.
std::vector<int> gguf_end_tokens(const GgufFile& file);

}  // namespace staircase
