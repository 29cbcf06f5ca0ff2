// Reads the settings of a model and finds the family that they name. A setting that would change the
// computation and is not implemented is an error: a model that runs must be the model that was trained.
#include "common/model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json_file.h"
#include "common/model/family.h"
#include "common/model/gguf_config.h"

namespace staircase {
namespace {

/// Reads the JSON object in a file of the model's folder; nothing if there is no such file. An existing file
/// must be readable, and a link must not be broken.
std::optional<nlohmann::json> object_in(const std::filesystem::path& file) {
  std::error_code ignored;
  if (!std::filesystem::exists(std::filesystem::symlink_status(file, ignored))) return {};
  return parse_json_object(read_text_file(file), file.string());
}

/// The id of <|endoftext|> in vocab.json, or -1. The vocabulary may be padded, so the last token need not be
/// the end of the text.
int end_of_text(const std::filesystem::path& model, int vocab_size) {
  const auto vocabulary = object_in(model / "vocab.json");
  if (!vocabulary) return -1;
  const auto found = vocabulary->find("<|endoftext|>");
  const bool is_id = found != vocabulary->end() && found->is_number_unsigned() &&
                     found->get<std::uint64_t>() < static_cast<std::uint64_t>(vocab_size);
  return is_id ? found->get<int>() : -1;
}

/// Reads the tokens that end a text: config.json names one or several, and generation_config.json often names
/// more.
void read_end_tokens(const Settings& settings, const std::filesystem::path& model, ModelConfig& config) {
  config.end_tokens = EndTokens(settings.tokens("eos_token_id", config.vocab_size));
  const std::filesystem::path generation = model / "generation_config.json";
  if (auto values = object_in(generation)) {
    const Settings more(generation.string(), std::move(*values));
    for (const int token : more.tokens("eos_token_id", config.vocab_size)) {
      config.end_tokens.add(token);
    }
  }
  if (config.end_tokens.empty() && !settings.is_null("eos_token_id")) {
    const int token = end_of_text(model, config.vocab_size);
    if (token >= 0) config.end_tokens.add(token);
  }
  config.eos_token_id = config.end_tokens.empty() ? -1 : *config.end_tokens.begin();
}

}  // namespace

void check_matrix(const Settings& settings, std::string_view name, std::int64_t rows, std::int64_t columns) {
  if (rows * columns <= std::numeric_limits<std::int32_t>::max()) return;
  throw Error("{}: {} is {} x {}, more than the 2^31 - 1 values a matrix may have", settings.file(), name,
              rows, columns);
}

Settings read_settings(const std::filesystem::path& model) {
  if (is_gguf(model)) {
    const GgufFile file(model);
    GgufConfig config = gguf_config(file);
    config.settings["eos_token_id"] = gguf_end_tokens(file);
    Settings settings(model.string(), std::move(config.settings));
    settings.remarks = std::move(config.remarks);
    return settings;
  }
  const std::filesystem::path file = model / "config.json";
  return Settings(file.string(), parse_json_object(read_text_file(file), file.string()));
}

ModelConfig read_config(const Settings& settings, const std::filesystem::path& model) {
  // Only old folders of GPT-2 have no model_type.
  if (!settings.find("model_type") && !settings.find("n_embd")) {
    throw Error("{} has no model_type, and only {} are supported", settings.file(), family_names());
  }
  const std::string name = settings.text_or("model_type", "gpt2");
  const Family* const family = find_family(name);
  if (family == nullptr) {
    throw Error("{}: model_type is {}, and only {} are supported", settings.file(), quote(name),
                family_names());
  }
  if (settings.find("quantization_config")) {
    throw Error(
        "{}: the model has a quantization_config, and only weights that are not quantized can be read",
        settings.file());
  }
  settings.require("is_causal", {true});
  settings.require("attn_logit_softcapping", {});
  settings.require("final_logit_softcapping", {});
  ModelConfig config = family->configure(settings);
  config.family = name;
  config.remarks.insert(config.remarks.begin(), settings.remarks.begin(), settings.remarks.end());
  check_matrix(settings, "vocab_size x width", config.vocab_size, config.n_embd);
  check_matrix(settings, "width x (queries, keys and values)", config.n_embd,
               std::int64_t{config.head_size} * (config.n_head + 2 * std::int64_t{config.n_kv_head}));
  const std::int64_t inner = std::max(config.n_inner, config.expert_inner);
  check_matrix(settings, "width x n_inner", config.n_embd, config.mlp_matrices > 2 ? 2 * inner : inner);
  read_end_tokens(settings, model, config);
  return config;
}

ModelConfig read_config(const std::filesystem::path& model) {
  return read_config(read_settings(model), model);
}

}  // namespace staircase
