#include "common/program/requests.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "common/base/json_options.h"

namespace staircase {

using nlohmann::json;

namespace {

/// A value as a person would type it.
std::string typed(const json& value) {
  if (value.is_string()) return value;
  if (!value.is_array()) return value.dump();
  std::vector<std::string> parts;
  for (const json& part : value) parts.push_back(typed(part));
  return fmt::format("{}", fmt::join(parts, ","));
}

}  // namespace

struct RequestLine::Object : JsonOptions {};

std::vector<int> prompt_tokens(const std::string& text, const Tokenizer& tokenizer,
                               const ModelConfig& config) {
  std::vector<int> tokens = tokenizer.encode_prompt(text);
  if (!tokens.empty()) return tokens;
  if (config.eos_token_id < 0) {
    throw Error("the prompt is empty, and the model has no end-of-text token to begin with; write a text");
  }
  tokens.push_back(config.eos_token_id);
  return tokens;
}

RequestLine::RequestLine(std::string_view text, const Tokenizer& tokenizer, const ModelConfig& config)
    : object_(std::make_unique<Object>(Object{{plain_values(parse_json_object(text, "the line"))}})),
      config_(config) {
  const json* const prompt = object_->find("prompt");
  if (prompt == nullptr) throw Error("the line has no prompt");
  if (!prompt->is_string()) refuse("prompt", *prompt, "a text");
  prompt_ = *prompt;
  tokens_ = prompt_tokens(prompt_, tokenizer, config);
}

RequestLine::~RequestLine() = default;

double RequestLine::arrival() {
  constexpr double kDay = 86400.0;
  const json* const found = object_->find("arrival");
  if (found == nullptr) return 0.0;
  const double seconds = found->is_number() ? found->get<double>() : -1.0;
  if (!(seconds >= 0.0 && seconds <= kDay)) {
    refuse("arrival", *found, fmt::format("a number of seconds from 0 to {}, a day", kDay));
  }
  return seconds;
}

void RequestLine::add(const std::string& name, OptionValue value, const std::string& /*help*/, Range range) {
  const std::string key = JsonOptions::key(name);
  object_->get_option(key, value, range);
  if (const auto found = object_->values.find(key); found != object_->values.end()) {
    options_.emplace_back(name, typed(*found));
  }
}

void RequestLine::end() const {
  for (const auto& [key, value] : object_->values.items()) {
    if (std::ranges::find(object_->known, key) != object_->known.end()) continue;
    throw Error("unknown key {}; known keys: {}", quote(key), fmt::join(object_->known, ", "));
  }
  apply_rules();
  apply_model_rules(config_);
}

void check_fits(std::size_t prompt_tokens, int max_new_tokens, std::size_t positions) {
  if (max_new_tokens == 0 || prompt_tokens + max_new_tokens <= positions + 1) return;
  throw UsageError("a prompt of {} tokens and {} new ones do not fit into {} positions", prompt_tokens,
                   max_new_tokens, positions);
}

}  // namespace staircase
