// Any tokenizer.json, tokenizer_config.json and text: an Error, or a tokenizer whose stream is what it
// decodes.
#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/text/tokenizer.h"
#include "common/text/tokenizer_config.h"
#include "common/text/tokenizer_json.h"
#include "tests/fuzz/round_trip.h"

namespace {

using nlohmann::json;

/// One file of each shape; to find them by chance would take forever.
const json& shape(std::size_t number) {
  static const std::array<const char*, 8> names = {"gpt2",  "smollm2", "llama-3", "qwen2",
                                                   "flags", "removed", "llama-2", "metaspace-first"};
  static std::array<json, names.size()> files;
  json& file = files[number % names.size()];
  if (file.is_null()) {
    const std::string folder = STAIRCASE_SOURCE_TREE "/tests/reference/tokenizers/";
    file = json::parse(staircase::read_file(folder + names[number % names.size()] + ".json"));
  }
  return file;
}

}  // namespace

// The input: tokenizer.json, a zero byte, tokenizer_config.json, a zero byte, a text. If tokenizer.json
// begins with a digit, what follows is a merge patch (RFC 7396) of the file with that number.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace staircase;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const auto next = [&rest] {
    const std::string_view part = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    return std::string(part);
  };
  std::string file = next();
  const std::string config = next();
  if (!file.empty() && file.front() >= '0' && file.front() <= '9') {
    json whole = shape(static_cast<std::size_t>(file.front() - '0'));
    const json patch = json::parse(file.substr(1), nullptr, false);
    if (!patch.is_discarded()) whole.merge_patch(patch);
    file = whole.dump(-1, ' ', true, json::error_handler_t::replace);
  }
  try {
    TokenizerDescription description = read_tokenizer_json(file, "tokenizer.json");
    if (!config.empty()) read_added_tokens_decoder(config, "tokenizer_config.json", description);
    if (!config.empty()) read_tokenizer_config(config, "tokenizer_config.json", description);
    const Tokenizer tokenizer(description, "folder");
    for (const auto& ids : {tokenizer.encode_prompt(rest), tokenizer.encode_with_special_tokens(rest)}) {
      require_streams(tokenizer, ids);
    }
  } catch (const Error&) {
  }
  return 0;
}
