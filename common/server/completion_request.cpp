#include "common/server/completion_request.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "common/base/json_options.h"

namespace staircase {

using nlohmann::json;

namespace {

/// Turns the errors of `work`, which looks at a key of the body, into refusals.
template <typename Work>
auto about(const std::string& key, const Work& work) {
  try {
    return work();
  } catch (const HttpError&) {
    throw;
  } catch (const Error& error) {
    throw HttpError(400, error.what(), key);
  }
}

/// Keys that change the text where they are implemented, and the value that changes nothing. null: every
/// value changes something.
const std::map<std::string, json>& refused_keys() {
  static const std::map<std::string, json> keys{{"suffix", ""},
                                                {"best_of", nullptr},  // neutral as long as it is n
                                                {"stop_token_ids", json::array()},
                                                {"include_stop_str_in_output", false},
                                                {"response_format", {{"type", "text"}}},
                                                {"max_completion_tokens", nullptr},
                                                {"max_new_tokens", nullptr},
                                                {"min_new_tokens", nullptr},
                                                {"n_predict", nullptr},
                                                {"prompt_logprobs", nullptr},
                                                {"top_logprobs", nullptr},
                                                {"prompt_embeds", nullptr},
                                                {"truncate_prompt_tokens", nullptr},
                                                {"messages", nullptr},
                                                {"tools", json::array()},
                                                {"allowed_token_ids", nullptr},
                                                {"bad_words", json::array()},
                                                {"use_beam_search", false},
                                                {"num_beams", 1},
                                                {"length_penalty", 1},
                                                {"early_stopping", false},
                                                {"guided_json", nullptr},
                                                {"guided_regex", nullptr},
                                                {"guided_choice", nullptr},
                                                {"guided_grammar", nullptr},
                                                {"structured_outputs", nullptr},
                                                {"grammar", ""},
                                                {"json_schema", nullptr},
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

/// All that are read.
const std::set<std::string>& known_keys() {
  static const std::set<std::string> keys{"model",
                                          "prompt",
                                          "max_tokens",
                                          "min_tokens",
                                          "temperature",
                                          "top_p",
                                          "top_k",
                                          "min_p",
                                          "n",
                                          "stop",
                                          "presence_penalty",
                                          "frequency_penalty",
                                          "repetition_penalty",
                                          "logit_bias",
                                          "seed",
                                          "logprobs",
                                          "echo",
                                          "stream",
                                          "stream_options",
                                          "ignore_eos",
                                          "user"};
  return keys;
}

/// How many characters one must insert, delete or replace to get from one word to the other (Levenshtein
/// 1966).
std::size_t distance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t(0));
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < to.size(); ++j) {
      const std::size_t replaced = diagonal + (from[i] != to[j]);
      diagonal = std::exchange(row[j + 1], std::min({row[j] + 1, row[j + 1] + 1, replaced}));
    }
  }
  return row.back();
}

/// Whether somebody meant the known key: with other capitals or joints, or with a slip of the pen.
bool is_misspelt(const std::string& key, const std::string& known) {
  const auto plain = [](std::string word) {
    std::erase_if(word, [](char c) { return c == '_' || c == '-' || c == ' '; });
    std::ranges::transform(word, word.begin(), [](unsigned char c) { return std::tolower(c); });
    return word;
  };
  const std::string one = plain(key), other = plain(known);
  if (one == other) return true;
  if (one.size() < 4 || one.size() > other.size() + 2) return false;
  return distance(one, other) <= (other.size() < 8 ? 1u : 2u);
}

/// Counts what the parser would build before it does, since a value takes far more memory and time than its
/// two bytes in the body.
void require_few_values(std::string_view body, std::size_t most) {
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
  if (keys > CompletionRequest::kMaxKeys) {
    throw HttpError(
        400, fmt::format("the body has {} keys, but at most {} are read", keys, CompletionRequest::kMaxKeys));
  }
  if (values > most) {
    throw HttpError(400,
                    fmt::format("the body has {} values, but at most {} are read", values + 1, most + 1));
  }
}

HttpError too_long(const std::string& prompt, int max_tokens, int n_positions) {
  return {
      400,
      // OpenAI's beginning of the sentence: clients look for it, such as LiteLLM.
      fmt::format("this model's maximum context length is {} tokens, but the prompt has {} and max_tokens "
                  "asks for {} more",
                  n_positions, prompt, max_tokens),
      "prompt", "context_length_exceeded"};
}

}  // namespace

ServedModel::ServedModel(const std::string& folder, const Tokenizer& tokenizer, const ModelConfig& config,
                         std::int64_t most_positions)
    // Of a folder its own name; "models/" is the same as "models".
    : name((std::filesystem::path(folder) / "").parent_path().filename().string()),
      tokenizer(&tokenizer),
      n_positions(static_cast<int>(std::min<std::int64_t>(config.n_positions, most_positions))),
      vocab_size(config.vocab_size),
      ends(config.end_tokens) {
  std::size_t longest = 0;
  for (int id = 0; id < tokenizer.vocab_size(); ++id) longest = std::max(longest, tokenizer.bytes(id).size());
  most_bytes = longest * static_cast<std::size_t>(n_positions);
}

struct CompletionRequest::Body : JsonOptions {};

CompletionRequest::CompletionRequest(std::string_view body, const ServedModel& model)
    : tokenizer_(model.tokenizer) {
  require_few_values(body, static_cast<std::size_t>(kMaxTexts) * model.n_positions + kMaxKeys);
  try {
    body_ = std::make_unique<Body>(Body{{plain_values(parse_json_object(body, "the body"))}});
  } catch (const Error& error) {
    throw HttpError(400, error.what());
  }
  json& values = body_->values;
  // As others have it, these say that there is no bound.
  if (const auto k = values.find("top_k"); k != values.end() && (*k == 0 || *k == -1)) values.erase(k);

  check_keys();
  about("model", [&] {
    const json* const name = body_->find("model");
    if (name == nullptr) return;
    if (!name->is_string()) refuse("model", *name, "a text");
    if (*name == model.name) return;
    throw HttpError(404,
                    fmt::format("there is no model {}, but one named {}", shown(*name), shown(model.name)),
                    "model", "model_not_found");
  });
  add("--n", &n, "", between(1, kMaxTexts));
  add("--max-new-tokens", &max_tokens, "", at_least(0));
  add("--logprobs", &logprobs, "", between(0, 20));
  add("--echo", &echo, "");
  add("--stream", &stream, "");
  about("user", [&] {
    const json* const user = body_->find("user");
    if (user != nullptr && !user->is_string()) refuse("user", *user, "a text");
  });
  if (const json* options = body_->find("stream_options")) {
    about("stream_options", [&] {
      if (!options->is_object()) refuse("stream_options", *options, "an object");
      if (!stream) throw HttpError(400, "stream_options needs stream to be true", "stream_options");
      JsonOptions inner{*options};
      if (inner.values.contains("include_usage") && inner.values["include_usage"].is_null()) return;
      inner.get("include_usage", &tells_use);
    });
  }
  about("logit_bias", [&] { read_bias(model); });
  about("prompt", [&] { read_prompts(model); });
}

CompletionRequest::~CompletionRequest() = default;

void CompletionRequest::check_keys() const {
  const json& values = body_->values;
  for (const auto& [key, value] : values.items()) {
    if (known_keys().contains(key)) continue;
    if (const auto refused = refused_keys().find(key); refused != refused_keys().end()) {
      const json neutral = key == "best_of" ? values.value("n", json(1)) : refused->second;
      if (!neutral.is_null() && value == neutral) continue;
      const std::string way =
          neutral.is_null() ? "leave it out" : fmt::format("leave it out or make it {}", neutral.dump());
      throw HttpError(400, fmt::format("{} is not implemented: {}", key, way), key, "unsupported_parameter");
    }
    for (const std::string& known : known_keys()) {
      if (!is_misspelt(key, known)) continue;
      throw HttpError(400, fmt::format("there is no key {}; {} is one", quote(key), known), key,
                      "unsupported_parameter");
    }
  }
}

void CompletionRequest::read_bias(const ServedModel& model) {
  const json* const found = body_->find("logit_bias");
  if (found == nullptr) return;
  if (!found->is_object()) refuse("logit_bias", *found, "an object of token ids and numbers");
  if (found->size() > kMaxBiases) {
    throw Error("logit_bias has {} tokens, but at most {} are read", found->size(), kMaxBiases);
  }
  for (const auto& [key, value] : found->items()) {
    int id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= model.vocab_size) {
      throw Error("logit_bias has the token id {}, but it must be a whole number from 0 to {}", quote(key),
                  model.vocab_size - 1);
    }
    const double bias = value.is_number() ? value.get<double>() : 1e9;
    if (!(std::abs(bias) <= 100)) refuse("the bias of token " + key, value, "a number from -100 to 100");
    logit_bias.emplace_back(id, static_cast<float>(bias));
  }
}

std::vector<int> CompletionRequest::texts_by_prompt() const {
  std::vector<int> numbers(static_cast<std::size_t>(texts()));
  std::iota(numbers.begin(), numbers.end(), 0);
  // Each goes with the first text of an equal prompt, and those come in their order.
  std::map<std::vector<int>, int> first;
  for (const int number : numbers) first.try_emplace(prompt(number), number);
  std::ranges::stable_sort(numbers, {}, [&](int number) { return first.at(prompt(number)); });
  return numbers;
}

void CompletionRequest::read_prompts(const ServedModel& model) {
  static constexpr const char* kRight =
      "a text, a list of texts, a list of token ids or a list of such lists";
  const json* const found = body_->find("prompt");
  if (found == nullptr) throw HttpError(400, "the body has no prompt", "prompt");

  const auto from_text = [&](const std::string& text) {
    // It is not cut into tokens only to see that there are too many.
    if (text.size() > model.most_bytes) {
      throw too_long(fmt::format("{} bytes", text.size()), max_tokens, model.n_positions);
    }
    return model.tokenizer->encode_prompt(text);
  };
  const auto from_ids = [&](const json& ids) {
    std::vector<int> prompt;
    for (const json& id : ids) {
      const int token = id.is_number() ? json_number<int>("a token id of prompt", id) : -1;
      if (token < 0 || token >= model.vocab_size) {
        refuse("a token id of prompt", id, fmt::format("a whole number from 0 to {}", model.vocab_size - 1));
      }
      prompt.push_back(token);
    }
    return prompt;
  };
  const auto all = [&](auto is) { return std::ranges::all_of(*found, is); };
  if (found->is_string()) {
    prompts_ = {from_text(*found)};
  } else if (!found->is_array()) {
    refuse("prompt", *found, kRight);
  } else if (found->empty()) {
    throw Error("prompt is an empty list, but it must be {}", kRight);
  } else if (all([](const json& id) { return id.is_number(); })) {
    prompts_ = {from_ids(*found)};
  } else {
    if (std::ssize(*found) * n > kMaxTexts) {
      throw HttpError(
          400,
          fmt::format("prompt is a list of {} and n is {}, but a request can ask for {} texts at most",
                      found->size(), n, kMaxTexts),
          "prompt");
    }
    const bool has_texts = all([](const json& text) { return text.is_string(); });
    if (!has_texts && !all([](const json& ids) { return ids.is_array(); })) {
      throw Error("prompt is a list of different things, but it must be {}", kRight);
    }
    for (const json& one : *found) prompts_.push_back(has_texts ? from_text(one) : from_ids(one));
  }
  for (const std::vector<int>& prompt : prompts_) {
    if (prompt.empty()) throw Error("prompt is empty, but it must have at least one token");
    if (std::ssize(prompt) + max_tokens > model.n_positions) {
      throw too_long(fmt::format("{}", prompt.size()), max_tokens, model.n_positions);
    }
  }
}

void CompletionRequest::add(const std::string& name, OptionValue value, const std::string& /*help*/,
                            Range range) {
  // A text that fits into the context never overflows.
  static const std::set<std::string> left_alone{"on_overflow", "refill", "show_candidates"};
  static const std::map<std::string, std::string> other_names{{"max_new_tokens", "max_tokens"},
                                                              {"min_new_tokens", "min_tokens"}};
  std::string key = JsonOptions::key(name);
  if (left_alone.contains(key)) return;
  if (const auto other = other_names.find(key); other != other_names.end()) key = other->second;
  if (key == "do_sample") {
    float temperature = 1.0f;
    about("temperature", [&] { body_->get("temperature", &temperature); });
    *std::get<bool*>(value) = temperature > 0.0f;
    return;
  }
  about(key, [&] {
    if (key == "max_tokens") *std::get<int*>(value) = kDefaultTokens;
    // What no float can carry through the penalty would end in a logit that is no number.
    if (key == "repetition_penalty") range = between(0.125, 100);
    if (key == "temperature") range = between(0, 100);
    if (key == "top_p") range = between(0, 1);
    if (unsigned* const* seed = std::get_if<unsigned*>(&value); seed && key == "seed") {
      const json* const found = body_->find(key);
      **seed = found == nullptr ? std::random_device()()
                                : static_cast<unsigned>(json_number<std::int64_t>(key, *found));
      return;
    }
    if (key == "stop") {
      if (const json* found = body_->find(key); found && found->is_array() && found->size() > kMaxStops) {
        throw Error("stop is a list of {}, but it must have {} at most", found->size(), kMaxStops);
      }
    }
    body_->get_option(key, value, range);
    if (key == "top_p") {  // 0 keeps one token, as the smallest share of the probability does
      auto& top_p = *std::get<std::optional<float>*>(value);
      if (top_p) top_p = std::max(*top_p, 1e-6f);
    }
    if (key == "stop") {
      for (const std::string& stop : *std::get<std::vector<std::string>*>(value)) {
        if (stop.size() <= kMaxStopBytes) continue;
        throw Error("stop has a text of {} bytes, but it must have {} at most", stop.size(), kMaxStopBytes);
      }
    }
    if (key == "min_tokens" && *std::get<int*>(value) > max_tokens) {
      throw HttpError(400,
                      fmt::format("min_tokens is {}, but it must be at most {}, the max_tokens",
                                  *std::get<int*>(value), max_tokens),
                      key);
    }
  });
}

}  // namespace staircase
