#include "common/server/request_body.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/misspelling.h"

namespace staircase {

using nlohmann::json;

namespace {

/// Counts the values before the parser builds them, because a value may take two bytes in the body but far
/// more memory and time.
void require_few_values(std::string_view body, std::size_t most_keys, std::size_t most) {
  std::size_t values = 0, keys = 0;
  bool in_text = false, is_escaped = false;
  for (const char byte : body) {
    if (in_text && (is_escaped || byte == '\\')) {
      is_escaped = !is_escaped;
      continue;
    }
    if (byte == '"') in_text = !in_text;
    if (in_text) continue;
    values += byte == ',';
    keys += byte == ':';
  }
  if (keys > most_keys) {
    throw HttpError(400, fmt::format("the body has {} keys, but at most {} are read", keys, most_keys));
  }
  if (values > most) {
    throw HttpError(400,
                    fmt::format("the body has {} values, but at most {} are read", values + 1, most + 1));
  }
}

}  // namespace

const std::map<std::string, json>& not_implemented() {
  static const std::map<std::string, json> keys{{"suffix", ""},
                                                {"stop_token_ids", json::array()},
                                                {"include_stop_str_in_output", false},
                                                {"max_new_tokens", nullptr},
                                                {"min_new_tokens", nullptr},
                                                {"n_predict", nullptr},
                                                {"prompt_logprobs", nullptr},
                                                {"prompt_embeds", nullptr},
                                                {"truncate_prompt_tokens", nullptr},
                                                {"tools", json::array()},
                                                {"allowed_token_ids", nullptr},
                                                {"bad_words", json::array()},
                                                {"use_beam_search", false},
                                                {"num_beams", 1},
                                                {"length_penalty", 1},
                                                {"early_stopping", false},
                                                {"logits_processors", json::array()},
                                                {"repeat_penalty", 1},
                                                {"typical_p", 1},
                                                {"tfs_z", 1},
                                                {"top_a", 0},
                                                {"top_n_sigma", -1},
                                                {"mirostat", 0},
                                                {"dynatemp_range", 0},
                                                {"xtc_probability", 0},
                                                {"dry_multiplier", 0}};
  return keys;
}

json read_body(std::string_view body, const BodyKeys& keys, std::size_t most_values) {
  require_few_values(body, keys.most, most_values);
  json values;
  try {
    values = plain_values(parse_json_object(body, "the body"));
  } catch (const Error& error) {
    throw HttpError(400, error.what());
  }
  refuse_keys(values, keys.refused);
  for (const auto& [key, value] : values.items()) {
    if (keys.known.contains(key) || keys.refused.contains(key)) continue;
    const std::string* nearest = nullptr;
    std::size_t fewest = 0;
    for (const std::string& known : keys.known) {
      const auto wrong = wrong_letters(key, known);
      if (wrong && (nearest == nullptr || *wrong < fewest))
        std::tie(nearest, fewest) = std::pair(&known, *wrong);
    }
    if (nearest == nullptr) continue;
    throw HttpError(400, fmt::format("unknown key {}; did you mean {}?", quote(key), *nearest), key,
                    "unsupported_parameter");
  }
  return values;
}

void refuse_keys(const json& object, const std::map<std::string, json>& refused, const std::string& name) {
  for (const auto& [key, value] : object.items()) {
    const auto found = refused.find(key);
    if (found == refused.end() || value.is_null()) continue;
    const json& neutral = found->second;
    if (!neutral.is_null() && value == neutral) continue;
    const std::string way =
        neutral.is_null() ? "leave it out" : fmt::format("leave it out or make it {}", neutral.dump());
    throw HttpError(400, fmt::format("{}{} is not implemented: {}", name, key, way), name + key,
                    "unsupported_parameter");
  }
}

int require_model(const std::string& name, const ServedModel& model) {
  if (name == model.name) return kNoAdapter;
  const auto adapter = std::ranges::find(model.adapters, name);
  if (adapter != model.adapters.end()) return static_cast<int>(adapter - model.adapters.begin());
  throw HttpError(404,
                  fmt::format("there is no model {}, but one named {}{}", quote(name), quote(model.name),
                              model.adapters.empty() ? "" : ", with the adapters that /v1/models lists"),
                  "model", "model_not_found");
}

int require_model(JsonOptions& body, const ServedModel& model) {
  return reject_errors("model", [&] {
    const json* const name = body.find("model");
    if (name == nullptr) return static_cast<int>(kNoAdapter);
    if (!name->is_string()) refuse("model", *name, "a text");
    return require_model(name->get<std::string>(), model);
  });
}

int token_id(const std::string& name, const json& value, const ServedModel& model) {
  const int token = value.is_number() ? json_number<int>(name, value) : -1;
  if (token < 0 || token >= model.vocab_size) {
    refuse(name, value, fmt::format("a whole number from 0 to {}", model.vocab_size - 1));
  }
  return token;
}

HttpError too_long(const std::string& prompt, int max_tokens, int n_positions, const std::string& key) {
  return {
      400,
      // OpenAI's beginning of the sentence: clients such as LiteLLM look for it.
      fmt::format("this model's maximum context length is {} tokens, but the prompt has {} and max_tokens "
                  "is {}",
                  n_positions, prompt, max_tokens),
      key, "context_length_exceeded"};
}

}  // namespace staircase
