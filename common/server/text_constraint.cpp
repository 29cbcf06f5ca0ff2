#include "common/server/text_constraint.h"

#include <algorithm>
#include <functional>

#include "common/server/request_body.h"
#include "common/server/tools.h"
#include "common/text/grammar_syntax.h"
#include "sampling.h"

namespace staircase {

namespace {

using Json = nlohmann::ordered_json;

enum class Kind { kJson, kRegex, kChoice, kGrammar };

/// A key of the body, or of an object in it, that limits the text.
struct Given {
  std::string key;
  Kind kind;
  Json value;
};

[[noreturn]] void refuse_value(const std::string& key, const Json& value, const std::string& right) {
  refuse(key, nlohmann::json(value), right);
}

[[noreturn]] void refuse_key(const std::string& key) {
  throw HttpError(400, key + " is not implemented: leave it out", key, "unsupported_parameter");
}

/// Rejects the members of an object that have a value and are not in `known`.
void require_known(const std::string& key, const Json& object, const std::vector<std::string>& known) {
  for (const auto& [name, value] : object.items()) {
    if (!value.is_null() && std::ranges::find(known, name) == known.end()) refuse_key(key + "." + name);
  }
}

std::vector<Given> of_response_format(const std::string& key, const Json& format) {
  static constexpr const char* kRight = "an object whose type is text, json_object or json_schema";
  if (!format.is_object() || !format.contains("type")) refuse_value(key, format, kRight);
  const Json& type = format["type"];
  if (type == "text" || type == "json_object") {
    require_known(key, format, {"type"});
    if (type == "text") return {};
    return {{key, Kind::kJson, {{"type", "object"}}}};
  }
  if (type != "json_schema") refuse_value(key + ".type", type, "text, json_object or json_schema");
  require_known(key, format, {"type", "json_schema"});
  const std::string inner = key + ".json_schema";
  const Json& described = format.contains("json_schema") ? format["json_schema"] : Json();
  if (!described.is_object() || !described.contains("schema"))
    refuse_value(inner, described, "an object with a name and a schema");
  require_known(inner, described, {"name", "description", "schema", "strict"});
  for (const char* name : {"name", "description"}) {
    if (described.contains(name) && !described[name].is_null() && !described[name].is_string())
      refuse_value(inner + "." + name, described[name], "a text");
  }
  if (described.contains("strict") && !described["strict"].is_null() && !described["strict"].is_boolean())
    refuse_value(inner + ".strict", described["strict"], "true or false");
  return {{key, Kind::kJson, described["schema"]}};
}

std::vector<Given> of_structured_outputs(const std::string& key, const Json& outputs) {
  static const std::vector<std::string> names{"json", "regex", "choice", "grammar", "json_object"};
  if (!outputs.is_object())
    refuse_value(key, outputs, "an object with json, regex, choice, grammar or json_object");
  require_known(key, outputs, names);
  std::vector<Given> all;
  for (const auto& [name, value] : outputs.items()) {
    const std::string inner = key + "." + name;
    if (value.is_null()) continue;
    if (name == "json_object") {
      if (!value.is_boolean()) refuse_value(inner, value, "true or false");
      if (value == true) all.push_back({inner, Kind::kJson, {{"type", "object"}}});
    } else {
      all.push_back({inner, static_cast<Kind>(std::ranges::find(names, name) - names.begin()), value});
    }
  }
  if (all.empty()) throw Error("{} has none of json, regex, choice, grammar and json_object", key);
  return all;
}

/// The keys that limit a text, with their readers: OpenAI's, vLLM's, vLLM's older ones, and llama.cpp's.
using Reader = std::function<std::vector<Given>(const std::string& key, const Json& value)>;
const std::vector<std::pair<std::string, Reader>>& readers() {
  const auto plain = [](Kind kind) {
    return [kind](const std::string& key, const Json& value) {
      return std::vector<Given>{{key, kind, value}};
    };
  };
  static const std::vector<std::pair<std::string, Reader>> all{
      {"response_format", of_response_format},
      {"structured_outputs", of_structured_outputs},
      {"guided_json", plain(Kind::kJson)},
      {"guided_regex", plain(Kind::kRegex)},
      {"guided_choice", plain(Kind::kChoice)},
      {"guided_grammar", plain(Kind::kGrammar)},
      {"json_schema", plain(Kind::kJson)},
      {"grammar", [](const std::string& key, const Json& value) {
         if (value == "") return std::vector<Given>();  // llama.cpp's default
         return std::vector<Given>{{key, Kind::kGrammar, value}};
       }}};
  return all;
}

std::shared_ptr<TextConstraint> made(const std::string& body_key, const Given& given,
                                     const ServedModel& model) {
  const std::string& key = given.key;
  const Kind kind = given.kind;
  const Json& value = given.value;
  const bool is_text = value.is_string();
  if ((kind == Kind::kRegex || kind == Kind::kGrammar) && !is_text) refuse_value(key, value, "a text");
  if (kind == Kind::kJson && !is_text && !value.is_object() && !value.is_boolean())
    refuse_value(key, value, "a JSON Schema");
  if (kind == Kind::kChoice) {
    const auto is_string = [](const Json& one) { return one.is_string(); };
    if (!value.is_array() || value.empty() || !std::ranges::all_of(value, is_string))
      refuse_value(key, value, "a list of one or more texts");
  }
  const std::string text = is_text ? value.get<std::string>() : value.dump();
  const std::string name = fmt::format("{} {}", static_cast<int>(kind), text);
  auto constraint = model.constraints->find_or_make(name, [&](std::shared_ptr<const SortedTokens> tokens) {
    switch (kind) {
      case Kind::kJson:
        return Constraint::of_json_schema(text, std::move(tokens));
      case Kind::kRegex:
        return Constraint::of_regex(text, std::move(tokens));
      case Kind::kChoice:
        return Constraint::of_choices(value.get<std::vector<std::string>>(), std::move(tokens));
      default:
        return Constraint::of_grammar(parse_grammar(text), std::move(tokens));
    }
  });
  return std::make_shared<TextConstraint>(body_key, name, std::move(constraint), model.ends);
}

/// Rejects requests in which a constraint cannot decide where the text ends.
void require_own_end(const std::string& key, JsonOptions& values, const ServedModel& model) {
  if (model.ends.empty())
    throw HttpError(400, key + " needs a model with an end-of-text token, and this one has none", key);
  const nlohmann::json* const ignores = values.find("ignore_eos");
  const nlohmann::json* const least = values.find("min_tokens");
  if (ignores != nullptr && *ignores == true)
    throw HttpError(400, key + " decides where a text ends, so leave out ignore_eos", "ignore_eos");
  if (least != nullptr && least->is_number() && *least > 0)
    throw HttpError(400, key + " decides where a text ends, so leave out min_tokens", "min_tokens");
}

}  // namespace

std::shared_ptr<Constraint> Constraints::find(const std::string& name) {
  const std::scoped_lock lock(mutex_);
  const auto found = std::ranges::find(kept_, name, &decltype(kept_)::value_type::first);
  if (found == kept_.end()) return nullptr;
  std::rotate(found, found + 1, kept_.end());
  return kept_.back().second;
}

void Constraints::keep(const std::string& name, const std::shared_ptr<Constraint>& constraint) {
  const std::scoped_lock lock(mutex_);
  if (kept_.size() == kMaxKept) kept_.erase(kept_.begin());
  kept_.emplace_back(name, constraint);
}

void TextConstraint::apply(KeepConstraint& row, std::span<float> logits, std::span<const int> text) {
  std::string why = fault_;  // only this thread writes it
  try {
    if (why.empty()) row(logits, text);
  } catch (const Error& error) {
    why = error.what();
  }
  if (why.empty()) return;
  {
    const std::scoped_lock lock(mutex_);
    fault_ = why;
  }
  std::ranges::fill(logits, kMasked);
  for (const int end : ends_) logits[static_cast<std::size_t>(end)] = 0.0f;
}

std::optional<HttpError> TextConstraint::fault() const {
  const std::scoped_lock lock(mutex_);
  if (fault_.empty()) return std::nullopt;
  return HttpError(400, fault_, key_);
}

const std::vector<std::string>& constraint_keys() {
  static const std::vector<std::string> keys = [] {
    std::vector<std::string> all;
    for (const auto& [key, _] : readers()) all.push_back(key);
    return all;
  }();
  return keys;
}

std::shared_ptr<TextConstraint> read_constraint(JsonOptions& values, std::string_view body,
                                                const ServedModel& model) {
  const auto is_there = [&](const std::string& key) { return values.find(key) != nullptr; };
  if (std::ranges::none_of(constraint_keys(), is_there)) return nullptr;
  const Json ordered = Json::parse(body);  // equals `values`, which are checked
  std::vector<std::pair<std::string, Given>> all;
  for (const auto& [key, reader] : readers()) {
    if (!is_there(key)) continue;
    reject_errors(key, [&, &key = key, &reader = reader] {
      for (Given& given : reader(key, ordered.at(key))) all.emplace_back(key, std::move(given));
    });
  }
  if (all.empty()) return nullptr;
  const auto& [key, given] = all.front();
  if (all.size() > 1)
    throw HttpError(
        400, fmt::format("{} and {} both limit the text: use one of them", given.key, all[1].second.key),
        all[1].first);
  require_own_end(key, values, model);
  return reject_errors(key, [&, &key = key, &given = given] { return made(key, given, model); });
}

std::shared_ptr<TextConstraint> calls_constraint(JsonOptions& values, const Tools& tools,
                                                 const TextConstraint* format, const ServedModel& model) {
  const std::string key = "tools";
  require_own_end(key, values, model);
  std::string name = fmt::format("{} {}{}", key, tools.must_call, tools.may_repeat);
  for (const CalledFunction& one : tools.functions) name += fmt::format(" {} {}", one.name, one.parameters);
  if (format != nullptr) name += " or " + format->name();
  const auto make = [&](std::shared_ptr<const SortedTokens> tokens) {
    return Constraint::of_grammar(
        answer_rules(model.call_form, tools.functions, tools.must_call, tools.may_repeat,
                     format == nullptr ? GrammarRules() : format->rules()),
        model.call_tokens ? model.call_tokens : std::move(tokens));
  };
  auto constraint = reject_errors(key, [&] { return model.constraints->find_or_make(name, make); });
  return std::make_shared<TextConstraint>(key, name, std::move(constraint), model.ends);
}

}  // namespace staircase
