#include "common/server/completion_request.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "common/decoding/beam_search.h"
#include "common/server/request_body.h"
#include "min_p.h"

namespace staircase {

using nlohmann::json;

namespace {

/// The keys of a completion.
const BodyKeys& completion_keys() {
  static const BodyKeys keys = [] {
    BodyKeys own{CompletionRequest::option_keys(), not_implemented(), CompletionRequest::kMaxKeys};
    own.known.insert({"prompt", "echo"});
    own.known.insert(constraint_keys().begin(), constraint_keys().end());
    for (const char* key : {"max_completion_tokens", "top_logprobs", "messages"}) own.refused[key] = nullptr;
    return own;
  }();
  return keys;
}

/// The keys of a completion where the service supports beam search.
BodyKeys with_search(BodyKeys keys) {
  for (const char* key : {"use_beam_search", "length_penalty", "early_stopping"}) {
    keys.refused.erase(key);
    keys.known.insert(key);
  }
  return keys;
}

/// The keys of sampling, and the values that a search treats as unset.
const std::map<std::string, std::vector<json>>& sampling_keys() {
  static const std::map<std::string, std::vector<json>> keys{
      {"temperature", {0, 1}}, {"top_k", {0, -1}}, {"top_p", {1}}, {"min_p", {0}}};
  return keys;
}

}  // namespace

ServedModel::ServedModel(const std::string& folder, const Tokenizer& tokenizer, const ModelConfig& config,
                         std::int64_t most_positions)
    // The folder's own name; "models/" means the same as "models".
    : name((std::filesystem::path(folder) / "").parent_path().filename().string()),
      folder(folder),
      tokenizer(&tokenizer),
      n_positions(static_cast<int>(std::min<std::int64_t>(config.n_positions, most_positions))),
      vocab_size(config.vocab_size),
      ends(config.end_tokens),
      constraints(std::make_shared<Constraints>(std::make_shared<SortedTokens>(tokenizer, ends))) {
  std::size_t longest = 0;
  for (int id = 0; id < tokenizer.vocab_size(); ++id) longest = std::max(longest, tokenizer.bytes(id).size());
  most_bytes = longest * static_cast<std::size_t>(n_positions);
}

void ServedModel::set_call_form(const std::optional<CallForm>& form) {
  call_form = form.value_or(plain_call_form());
  writes_calls = !form;
  call_tokens = nullptr;
  std::vector<int> written;
  for (const int marker : tokenizer->special_tokens())
    for (const std::string& text : {call_form.begin, call_form.middle, call_form.between, call_form.end})
      if (text.find(tokenizer->bytes(marker)) != text.npos) written.push_back(marker);
  if (!written.empty()) call_tokens = std::make_shared<SortedTokens>(*tokenizer, ends, written);
}

const std::set<std::string>& CompletionRequest::option_keys() {
  static const std::set<std::string> keys{"model",
                                          "max_tokens",
                                          "min_tokens",
                                          "temperature",
                                          "top_p",
                                          "top_k",
                                          "min_p",
                                          "n",
                                          "best_of",
                                          "best_by",
                                          "stop",
                                          "presence_penalty",
                                          "frequency_penalty",
                                          "repetition_penalty",
                                          "logit_bias",
                                          "seed",
                                          "logprobs",
                                          "stream",
                                          "stream_options",
                                          "ignore_eos",
                                          "user"};
  return keys;
}

CompletionRequest::CompletionRequest(std::string_view body, const ServedModel& model)
    : CompletionRequest(body, model, completion_keys()) {
  max_tokens = kDefaultTokens;
  // The sentence about a number outside its range comes from base/options.cpp.
  add("--max-new-tokens", &max_tokens, "", at_least(0));
  add("--logprobs", &logprobs, "", between(0, 20));
  add("--echo", &echo, "");
  if (adapter != kNoAdapter && score()) {
    throw HttpError(400,
                    "log-probabilities of a prompt (echo with logprobs) cannot be combined with an adapter: "
                    "leave one of them out",
                    "echo", "unsupported_parameter");
  }
  if (search && score()) {
    throw HttpError(400,
                    "log-probabilities of a prompt (echo with logprobs) cannot be combined with a beam "
                    "search: leave one of them out",
                    "echo", "unsupported_parameter");
  }
  reject_errors("prompt", [&] { read_prompts(model); });
}

CompletionRequest::CompletionRequest(std::string_view body, const ServedModel& model, const BodyKeys& keys,
                                     const std::vector<std::pair<std::string, std::string>>& defaults) {
  const std::size_t most_values = static_cast<std::size_t>(kMaxTexts) * model.n_positions + keys.most;
  const BodyKeys searching = model.searches ? with_search(keys) : BodyKeys();
  body_ = std::make_unique<Body>(Body{{read_body(body, model.searches ? searching : keys, most_values)}});
  json& values = body_->values;
  if (model.searches) read_search();
  for (const auto& [key, value] : defaults) {
    if (!values.contains(key) && !(search && sampling_keys().contains(key))) values[key] = json::parse(value);
  }
  // In other implementations, 0 and -1 mean that there is no limit.
  if (const auto k = values.find("top_k"); k != values.end() && (*k == 0 || *k == -1)) values.erase(k);

  adapter = require_model(*body_, model);
  add("--n", &n, "", between(1, kMaxTexts));
  add("--stream", &stream, "");
  read_best();
  reject_errors("user", [&] {
    const json* const user = body_->find("user");
    if (user != nullptr && !user->is_string()) refuse("user", *user, "a text");
  });
  if (const json* options = body_->find("stream_options")) {
    reject_errors("stream_options", [&] {
      if (!options->is_object()) refuse("stream_options", *options, "an object");
      if (!stream) throw HttpError(400, "stream_options needs stream to be true", "stream_options");
      JsonOptions inner{*options};
      if (inner.values.contains("include_usage") && inner.values["include_usage"].is_null()) return;
      inner.get("include_usage", &include_usage);
    });
  }
  reject_errors("logit_bias", [&] { read_bias(model); });
  constraint = read_constraint(*body_, body, model);
}

CompletionRequest::~CompletionRequest() = default;

/// A key that a search does not use may have a value that changes nothing; vLLM requires a temperature of 0.
void CompletionRequest::read_search() {
  bool searches = false;
  reject_errors("use_beam_search", [&] { body_->get("use_beam_search", &searches); });
  BeamOptions options;
  reject_errors("length_penalty",
                [&] { body_->get_option("length_penalty", &options.length_penalty, between(-10, 10)); });
  reject_errors("early_stopping", [&] {
    const json* const found = body_->find("early_stopping");
    if (found == nullptr) return;
    if (!found->is_boolean() && *found != "never")
      refuse("early_stopping", *found, R"(true, false or "never")");
    options.early_stopping = *found == true    ? EarlyStopping::kTrue
                             : *found == false ? EarlyStopping::kFalse
                                               : EarlyStopping::kNever;
  });
  if (!searches) {
    const bool is_plain = options.length_penalty == 1.0f;
    if (is_plain && options.early_stopping == EarlyStopping::kFalse) return;
    const char* const key = is_plain ? "early_stopping" : "length_penalty";
    throw HttpError(400, fmt::format("{} needs use_beam_search to be true", key), key);
  }
  for (const auto& [key, plain] : sampling_keys()) {
    const json* const found = body_->find(key);
    if (found != nullptr && std::ranges::count(plain, *found) == 0)
      throw HttpError(400, fmt::format("use_beam_search does not sample: leave out {}", key), key);
    body_->values.erase(key);
  }
  search = std::make_shared<BeamOptions>(options);
}

void CompletionRequest::read_best() {
  best_of = n;
  add("--best-of", &best_of, "", between(1, kMaxTexts));
  reject_errors("best_by", [&] {
    body_->get_option("best_by", one_of(&votes, {{"logprob", false}, {"vote", true}}), {});
  });
  const auto require = [](bool right, const std::string& key, const std::string& message) {
    if (!right) throw HttpError(400, message, key);
  };
  require(best_of >= n, "best_of",
          fmt::format("best_of is {}, but it must be at least {}, the value of n", best_of, n));
  if (body_->find("best_by") != nullptr) {
    require(!search, "best_by", "a beam search ranks its texts itself: leave out best_by");
    require(best_of > n, "best_by", "best_by needs best_of above n: without it all texts are returned");
    require(!votes || n == 1, "best_by", fmt::format("a vote has one winner, but n is {}: leave it out", n));
  }
  if (search) {
    require(best_of > 1, "use_beam_search",
            "use_beam_search needs best_of, or n, above 1: the number of its beams");
    search->num_beams = best_of;
  } else if (best_of > n) {
    bool is_sampled = false;
    add("--do-sample", &is_sampled, "");
    require(is_sampled, "best_of",
            fmt::format("best_of is {}, but with temperature 0 all {} texts would be the same", best_of,
                        best_of));
  }
  require(!stream || !ranks(), "stream",
          fmt::format("{} compares whole texts: leave out stream",
                      search ? "use_beam_search" : "best_of above n"));
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
  // Moves each text next to the first one with an equal prompt; these keep their order.
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
    // Rejects a text that surely has too many tokens before tokenizing it.
    if (text.size() > model.most_bytes) {
      throw too_long(fmt::format("{} bytes", text.size()), max_tokens, model.n_positions, "prompt");
    }
    return model.tokenizer->encode_prompt(text);
  };
  const auto from_ids = [&](const json& ids) {
    std::vector<int> prompt;
    for (const json& id : ids) prompt.push_back(token_id("a token id of prompt", id, model));
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
    if (std::ssize(*found) * best_of > kMaxTexts) {
      throw HttpError(
          400,
          fmt::format("prompt is a list of {} and {} is {}, but a request may generate at most {} texts",
                      found->size(), best_of > n ? "best_of" : "n", best_of, kMaxTexts),
          "prompt");
    }
    const bool has_texts = all([](const json& text) { return text.is_string(); });
    if (!has_texts && !all([](const json& ids) { return ids.is_array(); })) {
      throw Error("prompt is a mixed list, but it must be {}", kRight);
    }
    for (const json& one : *found) prompts_.push_back(has_texts ? from_text(one) : from_ids(one));
  }
  for (const std::vector<int>& prompt : prompts_) {
    if (prompt.empty()) throw Error("prompt is empty, but it must have at least one token");
    if (std::ssize(prompt) + max_tokens > model.n_positions) {
      throw too_long(fmt::format("{}", prompt.size()), max_tokens, model.n_positions, "prompt");
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
    reject_errors("temperature", [&] { body_->get("temperature", &temperature); });
    *std::get<bool*>(value) = temperature > 0.0f;
    return;
  }
  reject_errors(key, [&] {
    if (key == "max_tokens") *std::get<int*>(value) = max_tokens;
    // With a value outside this range, float arithmetic could yield a NaN logit.
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
        throw Error("stop is a list of {}, but it must have at most {}", found->size(), kMaxStops);
      }
    }
    body_->get_option(key, value, range);
    if (key == "top_p") {  // 0 keeps one token, as does the smallest possible share of the probability
      auto& top_p = *std::get<std::optional<float>*>(value);
      if (top_p) top_p = std::max(*top_p, 1e-6f);
    }
    if (key == "stop") {
      for (const std::string& stop : *std::get<std::vector<std::string>*>(value)) {
        if (stop.size() <= kMaxStopBytes) continue;
        throw Error("stop has a text of {} bytes, but it must have at most {}", stop.size(), kMaxStopBytes);
      }
    }
    if (key == "min_tokens" && *std::get<int*>(value) > max_tokens) {
      throw HttpError(400,
                      fmt::format("min_tokens is {}, but it must be at most {}, the value of max_tokens",
                                  *std::get<int*>(value), max_tokens),
                      key);
    }
  });
}

RowOptions row_options(CompletionRequest& request) {
  RowOptions options;
  options.extras.adapter = request.adapter;
  add_options(request, options);
  options.extras.search = request.search;
  if (request.ranks() && !options.logprobs.count) options.logprobs.count = 0;  // for the chosen tokens only
  MinPOptions tail;
  add_options(request, tail, options.sampling);
  if (request.constraint || !request.logit_bias.empty()) {
    options.edit_raw_logits = [constraint = request.constraint,
                               row = request.constraint ? request.constraint->row() : KeepConstraint(),
                               biases = request.logit_bias](std::span<float> logits,
                                                            std::span<const int> text) mutable {
      if (constraint) constraint->apply(row, logits, text);
      for (const auto& [id, bias] : biases) logits[static_cast<std::size_t>(id)] += bias;
    };
  }
  if (tail.min_p)
    options.edit_final_logits = [p = *tail.min_p](std::span<float> logits) { keep_min_p(logits, p); };
  return options;
}

}  // namespace staircase
