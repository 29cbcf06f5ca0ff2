#include "common/text/tokenizer_config.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "common/base/error.h"
#include "common/text/added_token_reader.h"
#include "common/text/json_value.h"
#include "common/text/vocabulary_reader.h"

namespace staircase {

namespace {

/// The id of the token with this text, if there is one.
std::optional<int> find_token(const TokenizerDescription& description, const std::string& text) {
  for (const AddedToken& token : description.added) {
    if (token.content == text) return token.id;
  }
  const auto& pieces = description.pieces;
  const auto found = std::find(pieces.begin(), pieces.end(), text);
  if (found == pieces.end()) return {};
  return static_cast<int>(found - pieces.begin());
}

/// The text of a token, which the file writes as a string, or as an object with further facts.
std::string text_of(const JsonValue& token) {
  return token.json().is_object() ? token["content"].text() : token.text();
}

/// Makes the token with this text special, since the file names it for a purpose. Returns its id.
std::optional<int> name_special(const std::string& text, const std::string& file,
                                TokenizerDescription& description) {
  const std::optional<int> id = find_token(description, text);
  if (!id) return id;
  add_token({.id = *id, .content = text, .special = true}, file, description);
  for (AddedToken& token : description.added) token.special |= token.id == *id;
  return id;
}

/// The id of the token that `key` names, if it names one.
std::optional<int> named_token(const JsonValue& config, const char* key, TokenizerDescription& description) {
  const JsonValue token = config[key];
  if (token.is_null()) return {};
  const std::optional<int> id = name_special(text_of(token), config.file(), description);
  if (!id) token.refuse("which is not a token of the vocabulary");
  return id;
}

/// Makes all tokens special that the file names for a purpose. Returns the begin-of-text token.
std::optional<int> name_special_tokens(const JsonValue& config, TokenizerDescription& description) {
  named_token(config, "eos_token", description);
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    if (!config[key].json().is_array()) continue;
    for (const JsonValue& token : config[key].elements())
      name_special(text_of(token), config.file(), description);
  }
  return named_token(config, "bos_token", description);
}

void read_prefix_space(const JsonValue& setting, TokenizerDescription& description) {
  if (setting.is_null()) return;
  const bool wanted = setting.boolean(false);
  const bool there = description.space_before != SpaceBefore::kNothing ||
                     std::any_of(description.normalizations.begin(), description.normalizations.end(),
                                 [](const auto& step) { return step.kind == Normalization::Kind::kPrepend; });
  if (wanted == there) return;
  const bool bytes = description.alphabet == TokenizerDescription::Alphabet::kBytes;
  if (!bytes || description.cuts.size() > 1) setting.refuse("and tokenizer.json differs");
  description.space_before = wanted ? SpaceBefore::kEach : SpaceBefore::kNothing;
}

}  // namespace

std::string tokenizer_class(std::string_view content, const std::string& file) {
  const nlohmann::json parsed = parse_json_object(content, file);
  const JsonValue name = JsonValue(parsed, file)["tokenizer_class"];
  return name.is_null() ? "" : name.text();
}

void read_added_tokens_decoder(std::string_view content, const std::string& file,
                               TokenizerDescription& description) {
  const nlohmann::json parsed = parse_json_object(content, file);
  const JsonValue tokens = JsonValue(parsed, file)["added_tokens_decoder"];
  if (tokens.is_null()) return;
  for (const auto& [key, value] : tokens.object().items()) {
    int id = -1;
    const auto [end, fault] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (fault != std::errc() || end != key.data() + key.size() || id < 0 || id >= kMostTokens) {
      throw Error("{}: {} has the key {}, not an integer from 0 to {}", tokens.file(), tokens.path(),
                  quote(key), kMostTokens - 1);
    }
    add_token(read_added_token(tokens[key], id), tokens.file(), description);
  }
}

void read_added_tokens(std::string_view content, const std::string& file, TokenizerDescription& description) {
  const nlohmann::json parsed = parse_json_object(content, file);
  const JsonValue tokens(parsed, file);
  for (const auto& [text, value] : tokens.object().items()) {
    if (text.empty()) throw Error("{}: an added token is empty", file);
    add_token({.id = tokens[text].index(kMostTokens), .content = text}, file, description);
  }
}

void read_special_tokens_map(std::string_view content, const std::string& file,
                             TokenizerDescription& description) {
  const nlohmann::json parsed = parse_json_object(content, file);
  name_special_tokens(JsonValue(parsed, file), description);
}

void read_tokenizer_config(std::string_view content, const std::string& file,
                           TokenizerDescription& description) {
  const nlohmann::json parsed = parse_json_object(content, file);
  const JsonValue config(parsed, file);
  const std::optional<int> begin = name_special_tokens(config, description);
  read_prefix_space(config["add_prefix_space"], description);
  if (config["add_eos_token"].boolean(false)) {
    config["add_eos_token"].refuse("and a text that ends cannot be continued");
  }
  // The template of tokenizer.json may also require the token. As in transformers, false does not override
  // that.
  if (config["add_bos_token"].boolean(false)) {
    if (!begin) config["add_bos_token"].refuse("and no bos_token is named");
    description.begin = begin;
  }
}

}  // namespace staircase
