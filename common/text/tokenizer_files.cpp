#include "common/text/tokenizer_files.h"

#include <optional>
#include <string>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json_file.h"
#include "common/text/gguf_tokenizer.h"
#include "common/text/pre_types.h"
#include "common/text/tokenizer_config.h"
#include "common/text/tokenizer_json.h"
#include "common/text/vocabulary_reader.h"

namespace staircase {

namespace {

using Content = std::optional<std::string>;

Content read_if_there(const std::filesystem::path& file) {
  return is_there(file) ? Content(read_text_file(file)) : std::nullopt;
}

/// vocab.json and merges.txt do not define how a text is split: a class of transformers does.
void use_class(std::string name, const std::string& file, TokenizerDescription& description) {
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  if (name.empty() || name == "GPT2Tokenizer" || name == "PreTrainedTokenizer" || name == "TokenizersBackend")
    return;
  if (name != "Qwen2Tokenizer") {
    throw Error(
        "{}: tokenizer_class is {}, and without tokenizer.json only GPT2Tokenizer and Qwen2Tokenizer are "
        "supported",
        file, quote(name));
  }
  const PreType qwen2 = pre_tokenizer_of("qwen2").value();
  description.cuts = qwen2.cuts;
  if (qwen2.nfc) description.normalizations = {{Normalization::Kind::kNfc}};
}

}  // namespace

TokenizerDescription describe_tokenizer(const std::filesystem::path& folder) {
  if (is_gguf(folder)) return describe_gguf_tokenizer(GgufFile(folder));
  const auto json_path = folder / "tokenizer.json", config_path = folder / "tokenizer_config.json",
             added_path = folder / "added_tokens.json", map_path = folder / "special_tokens_map.json",
             vocab_path = folder / "vocab.json", merges_path = folder / "merges.txt";
  const Content config = read_if_there(config_path);
  TokenizerDescription description;
  if (const Content json = read_if_there(json_path)) {
    description = read_tokenizer_json(*json, json_path.string());
  } else if (!is_there(vocab_path)) {
    const bool sentence_piece = is_there(folder / "tokenizer.model");
    throw Error("{} has no tokenizer that can be read: neither tokenizer.json nor vocab.json is there{}",
                folder.string(), sentence_piece ? ", and tokenizer.model is not read" : "");
  } else {
    description = read_vocab_and_merges(read_text_file(vocab_path), read_text_file(merges_path),
                                        vocab_path.string(), merges_path.string());
    if (config) use_class(tokenizer_class(*config, config_path.string()), config_path.string(), description);
  }
  if (config) read_added_tokens_decoder(*config, config_path.string(), description);
  if (const Content added = read_if_there(added_path)) {
    read_added_tokens(*added, added_path.string(), description);
  }
  if (const Content map = read_if_there(map_path))
    read_special_tokens_map(*map, map_path.string(), description);
  if (config) read_tokenizer_config(*config, config_path.string(), description);
  return description;
}

}  // namespace staircase
