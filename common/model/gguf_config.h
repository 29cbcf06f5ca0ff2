// The configuration of a model in a GGUF file, as Hugging Face's config.json would state it. Only sources
// include this, and it is not installed: who uses the library needs no JSON of ours.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/model/gguf.h"

namespace staircase {

struct GgufConfig {
  nlohmann::json settings;           ///< the keys of config.json, in the spelling of transformers 5
  std::vector<std::string> remarks;  ///< for a person: what the file does not say, and what is assumed
};

/// Throws Error with one sentence that names the file, the key and the value for what cannot be; what is
/// possible and not supported is left to the reader of config.json.
GgufConfig gguf_config(const GgufFile& file);

/// The tokens that end a text: those that the metadata names, and marks of an end among the control tokens,
/// since the metadata has room for one of several.
std::vector<int> gguf_end_tokens(const GgufFile& file);

}  // namespace staircase
