#include "common/text/gguf_tokenizer.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "common/base/error.h"
#include "common/text/gguf_vocabulary.h"

namespace staircase {
namespace {

template <typename Value>
Value needed(const GgufFile& file, std::optional<Value> value, std::string_view key) {
  if (!value) throw Error("{} has no {}: it holds no tokenizer", file.file().string(), key);
  return *std::move(value);
}

/// The id of a token, if the file names one. Some files write the largest number to name none.
std::optional<int> token(const GgufFile& file, std::string_view which) {
  const auto id = file.integer(fmt::format("tokenizer.ggml.{}_token_id", which));
  if (!id || *id == std::numeric_limits<std::uint32_t>::max()) return {};
  constexpr std::uint64_t kLargest = std::numeric_limits<int>::max();
  return static_cast<int>(std::min(*id, kLargest));
}

}  // namespace

TokenizerDescription describe_gguf_tokenizer(const GgufFile& file) {
  GgufVocabulary vocabulary;
  vocabulary.architecture = file.text("general.architecture").value_or("");
  vocabulary.model = needed(file, file.text("tokenizer.ggml.model"), "tokenizer.ggml.model");
  vocabulary.pre = file.text("tokenizer.ggml.pre").value_or("");
  vocabulary.tokens = needed(file, file.texts("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens");
  if (vocabulary.model == "gpt2") {
    vocabulary.merges = needed(file, file.texts("tokenizer.ggml.merges"), "tokenizer.ggml.merges");
  } else if (vocabulary.model == "llama") {
    vocabulary.scores = needed(file, file.numbers("tokenizer.ggml.scores"), "tokenizer.ggml.scores");
  }
  for (const std::int64_t type :
       file.integers("tokenizer.ggml.token_type").value_or(std::vector<std::int64_t>())) {
    if (type < 1 || type > 6) {
      throw Error("{}: tokenizer.ggml.token_type holds {}, not 1 to 6", file.file().string(), type);
    }
    vocabulary.token_type.push_back(static_cast<int>(type));
  }
  vocabulary.bos_token_id = token(file, "bos");
  for (const char* which : {"eos", "eot", "eom"}) {
    if (const std::optional<int> id = token(file, which)) vocabulary.end_ids.push_back(*id);
  }
  vocabulary.add_bos_token = file.boolean("tokenizer.ggml.add_bos_token");
  vocabulary.add_eos_token = file.boolean("tokenizer.ggml.add_eos_token");
  vocabulary.add_space_prefix = file.boolean("tokenizer.ggml.add_space_prefix");
  return describe(vocabulary, file.file().string());
}

std::optional<std::string> gguf_chat_template(const GgufFile& file) {
  if (auto text = file.text("tokenizer.chat_template")) return text;
  return file.text("tokenizer.chat_template.default");
}

}  // namespace staircase
