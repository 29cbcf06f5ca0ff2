// The configuration of a model in a GGUF file, in the form of Hugging Face's config.json. Only sources
// include this header, and it is not installed: users of the library do not depend on our JSON parser.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/model/gguf.h"

namespace staircase {

struct GgufConfig {
  nlohmann::json settings;           ///< the keys of config.json, in the spelling of transformers 5
  std::vector<std::string> remarks;  ///< for a person: what the file does not specify, and what is assumed
};

/// Throws Error with one sentence that names the file, the key and an impossible value. The reader of
/// config.json judges what is possible but not supported.
GgufConfig gguf_config(const GgufFile& file);

/// The tokens that end a text: those in the metadata, and end markers among the control tokens, since the
/// metadata has room for only one.
std::vector<int> gguf_end_tokens(const GgufFile& file);

}  // namespace staircase
