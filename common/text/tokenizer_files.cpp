#include "common/text/tokenizer_files.h"

#include <optional>
#include <string>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/text/gguf_tokenizer.h"
#include "common/text/tokenizer_config.h"
#include "common/text/tokenizer_json.h"
#include "common/text/vocabulary_reader.h"

namespace staircase {

namespace {

using Content = std::optional<std::string>;

Content read_if_there(const std::filesystem::path& file) {
  return std::filesystem::exists(file) ? Content(read_file(file)) : std::nullopt;
}

}  // namespace

TokenizerDescription describe_tokenizer(const std::filesystem::path& folder) {
  if (is_gguf(folder)) return describe_gguf_tokenizer(GgufFile(folder));
  const auto json_path = folder / "tokenizer.json", config_path = folder / "tokenizer_config.json",
             added_path = folder / "added_tokens.json", vocab_path = folder / "vocab.json",
             merges_path = folder / "merges.txt";
  const Content config = read_if_there(config_path);
  TokenizerDescription description;
  if (const Content json = read_if_there(json_path)) {
    description = read_tokenizer_json(*json, json_path.string());
  } else if (!std::filesystem::exists(vocab_path)) {
    throw Error("{} has no tokenizer: neither tokenizer.json nor vocab.json is there", folder.string());
  } else {
    description = read_vocab_and_merges(read_file(vocab_path), read_file(merges_path), vocab_path.string(),
                                        merges_path.string());
  }
  if (config) read_tokenizer_config(*config, config_path.string(), description);
  if (const Content added = read_if_there(added_path)) {
    read_added_tokens(*added, added_path.string(), description);
  }
  return description;
}

}  // namespace staircase
