#include "common/text/schema_reader.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/error.h"
#include "common/base/misspelling.h"
#include "common/base/quoted.h"
#include "common/text/stack_automaton.h"

namespace staircase {

using Json = SchemaReader::Json;
using Schemas = SchemaReader::Schemas;

namespace {

constexpr std::size_t kMaxDepth = 100;
constexpr int kMaxParts = 1'000'000, kMaxAlternatives = 1'000;

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> all;
  for (std::size_t from = 0, to = 0; from < text.size(); from = to + 1) {
    to = std::min(text.find(' ', from), text.size());
    all.emplace_back(text.substr(from, to - from));
  }
  return all;
}

// The keywords that decide which values are valid: first the supported ones, then the others.
const std::vector<std::string> kKeywords = words(
    "$ref additionalItems additionalProperties allOf anyOf const dependencies dependentRequired "
    "dependentSchemas else enum exclusiveMaximum exclusiveMinimum format if items maximum maxItems maxLength "
    "maxProperties minimum minItems minLength minProperties not nullable oneOf pattern patternProperties "
    "prefixItems properties required then type");
const std::vector<std::string> kNotBuilt = words(
    "$dynamicRef $id $recursiveRef contains contentEncoding contentMediaType disallow divisibleBy extends "
    "id maxContains minContains multipleOf propertyNames unevaluatedItems unevaluatedProperties "
    "uniqueItems");

std::string percent_decoded(const std::string& text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string digits = text.substr(i + 1 > text.size() ? text.size() : i + 1, 2);
    const bool is_code = text[i] == '%' && digits.size() == 2 &&
                         digits.find_first_not_of("0123456789abcdefABCDEF") == digits.npos;
    decoded += is_code ? static_cast<char>(std::stoi(digits, nullptr, 16)) : text[i];
    if (is_code) i += 2;
  }
  return decoded;
}

int type_of(const Json& value) {
  if (value.is_number()) return SchemaReader::is_whole(value) ? kWhole : kFraction;
  return value.is_null()      ? kNull
         : value.is_boolean() ? kBoolean
         : value.is_string()  ? kString
         : value.is_array()   ? kArray
                              : kObject;
}

/// Whether a part matches the string as JSON writes it.
bool is_text_of(const RegexPart& part, const std::string& string) {
  StackAutomaton automaton(std::make_shared<const GrammarRules>());
  StackAutomaton::Stacks stacks = automaton.start(part);
  const std::string text = Json(string).dump();
  for (const char byte : text.substr(1, text.size() - 2)) stacks = automaton.after(stacks, byte);
  return automaton.accepts(stacks);
}

/// Whether a schema may contain a reference.
bool refers(const Json& value) {
  return (value.is_object() && value.contains("$ref")) ||
         (value.is_structured() && std::ranges::any_of(value, refers));
}

/// The type that minLength, minItems or minProperties applies to.
const char* type_with(const std::string& size) {
  return size == "Length" ? "string" : size == "Items" ? "array" : "object";
}

double characters_in(const std::string& text) {
  return static_cast<double>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

/// Compares two values. Objects are equal in any order of their members.
bool is_same(const Json& one, const Json& other) {
  if (one.is_object() && other.is_object()) {
    return one.size() == other.size() && std::ranges::all_of(one.items(), [&](const auto& item) {
             return other.contains(item.key()) && is_same(item.value(), other.at(item.key()));
           });
  }
  if (one.is_array() && other.is_array())
    return std::equal(one.begin(), one.end(), other.begin(), other.end(), is_same);
  return one == other;
}

/// The keyword that an unknown name probably means. A leading underscore switches a keyword off on purpose,
/// so such a name means none. Keywords of fewer than four letters are skipped, since too many words are one
/// letter away from them.
std::optional<std::string> meant_by(const std::string& name) {
  std::optional<std::string> nearest;
  std::size_t fewest = name.size();
  if (name.starts_with("_")) return nearest;
  for (const auto* list : {&kKeywords, &kNotBuilt})
    for (const std::string& keyword : *list) {
      const auto wrong = keyword.size() < 4 ? std::nullopt : wrong_letters(name, keyword);
      if (wrong && *wrong < fewest) nearest = keyword, fewest = *wrong;
    }
  return nearest;
}

}  // namespace

SchemaReader::SchemaReader(Json document) : document_(std::move(document)) {
  paths_[&document_] = "";
  const Json id = document_.is_object() ? document_.value("$schema", Json()) : Json();
  for (const std::string_view old : {"draft-03", "draft-04", "draft-06", "draft-07"})
    ref_is_alone_ |= id.is_string() && id.get<std::string>().find(old) != std::string::npos;
}

void SchemaReader::fail_at(const std::string& path, std::string_view what) const {
  throw UsageError("the schema cannot be used at {}: {}", path.empty() ? "its root" : printable(path), what);
}

void SchemaReader::fail(const Json* schema, std::string_view what) const {
  fail_at(paths_.at(schema), what);
}

void SchemaReader::fail(const Json* schema, const std::string& keyword, std::string_view what) const {
  fail_at(paths_.at(schema) + "/" + keyword, what);
}

void SchemaReader::count(std::size_t parts) {
  made_ += parts;
  if (made_ > kMaxParts) throw UsageError("the schema has more than {} parts as a grammar", kMaxParts);
}

// ── Parts ──

std::string in_pointer(const std::string& name) {
  std::string written;
  for (const char c : name) written += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return written;
}

const Json* SchemaReader::within(const Json* schema, const std::string& keyword) {
  return at(&schema->at(keyword), paths_.at(schema) + "/" + keyword);
}

/// Remembers the path of a schema.
const Json* SchemaReader::at(const Json* schema, const std::string& path) {
  paths_.try_emplace(schema, path);
  if (!schema->is_object() && !schema->is_boolean()) fail_at(path, "a schema is an object, true or false");
  return schema;
}

Schemas SchemaReader::listed(const Json* schema, const std::string& keyword) {
  Schemas all;
  for (std::size_t i = 0; i < schema->at(keyword).size(); ++i)
    all.push_back(at(&schema->at(keyword)[i], fmt::format("{}/{}/{}", paths_.at(schema), keyword, i)));
  return all;
}

std::vector<std::string> SchemaReader::required_in(const Schemas& all) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const Json* schema : all)
    if (schema->contains("required"))
      for (const Json& name : schema->at("required"))
        if (seen.insert(name.get<std::string>()).second) names.push_back(name.get<std::string>());
  return names;
}

Schemas SchemaReader::member(const Schemas& all, const std::string& name) {
  std::set<std::string> patterns = patterns_in(all);
  std::erase_if(patterns, [&](const std::string& pattern) { return !matches(all, pattern, name); });
  Schemas schemas;
  for (const Json* schema : all) {
    const Json* found = property(schema, name);
    if (found != nullptr) {
      schemas.push_back(at(found, paths_.at(schema) + "/properties/" + in_pointer(name)));
      for (const Json* one : with_patterns(schema, patterns)) schemas.push_back(one);
    } else {
      for (const Json* one : matched({schema}, patterns)) schemas.push_back(one);
    }
  }
  return schemas;
}

std::set<std::string> SchemaReader::patterns_in(const Schemas& all) {
  std::set<std::string> patterns;
  for (const Json* schema : all)
    if (schema->contains("patternProperties"))
      for (const auto& [pattern, _] : schema->at("patternProperties").items()) patterns.insert(pattern);
  return patterns;
}

Schemas SchemaReader::with_patterns(const Json* schema, const std::set<std::string>& patterns) {
  Schemas schemas;
  for (const std::string& pattern : patterns_in({schema}))
    if (patterns.contains(pattern))
      schemas.push_back(at(&schema->at("patternProperties").at(pattern),
                           paths_.at(schema) + "/patternProperties/" + in_pointer(pattern)));
  return schemas;
}

Schemas SchemaReader::matched(const Schemas& all, const std::set<std::string>& patterns) {
  Schemas schemas;
  for (const Json* schema : all) {
    const Schemas found = with_patterns(schema, patterns);
    schemas.insert(schemas.end(), found.begin(), found.end());
    if (found.empty() && schema->contains("additionalProperties"))
      schemas.push_back(within(schema, "additionalProperties"));
  }
  return schemas;
}

/// Whether the pattern matches the name as JSON writes it: each of its characters has one form.
bool SchemaReader::matches(const Schemas& all, const std::string& pattern, const std::string& name) const {
  return is_text_of(name_pattern(all, pattern), name);
}

/// Whether the `pattern` of a schema matches a string.
bool SchemaReader::matches(const Json* schema, const std::string& pattern, const std::string& text) const {
  try {
    return is_text_of(parse_json_pattern(pattern, any_of_in_json(all_but({}))), text);
  } catch (const UsageError& error) {
    fail(schema, "pattern", error.what());
  }
}

RegexPart SchemaReader::name_pattern(const Schemas& all, const std::string& pattern) const {
  try {
    return parse_json_pattern(pattern, any_of_in_json(kNameCharacters));
  } catch (const UsageError& error) {
    for (const Json* schema : all)
      if (patterns_in({schema}).contains(pattern))
        fail(schema, "patternProperties/" + in_pointer(pattern), error.what());
    throw;
  }
}

const Json* SchemaReader::property(const Json* schema, const std::string& name) {
  if (!schema->contains("properties")) return nullptr;
  const auto [known, is_new] = properties_.try_emplace(schema);
  if (is_new)
    for (const auto& [key, value] : schema->at("properties").items()) known->second[key] = &value;
  const auto found = known->second.find(name);
  return found == known->second.end() ? nullptr : found->second;
}

// ── Which schemas hold together ──

std::vector<Schemas> SchemaReader::alternatives(const Schemas& schemas) {
  std::vector<Schemas> all{{}};
  for (const Json* schema : schemas) all = both(all, alternatives(schema), schema);
  return all;
}

std::vector<Schemas> SchemaReader::both(const std::vector<Schemas>& some, const std::vector<Schemas>& others,
                                        const Json* place) {
  std::vector<Schemas> all;
  for (const Schemas& one : some) {
    for (const Schemas& other : others) {
      Schemas& joined = all.emplace_back(one);
      for (const Json* schema : other)
        if (std::ranges::find(joined, schema) == joined.end()) joined.push_back(schema);
      count(joined.size());
    }
  }
  if (all.size() > kMaxAlternatives) fail(place, "it has more than 1000 combinations of alternatives");
  return all;
}

std::vector<Schemas> SchemaReader::alternatives(const Json* schema) {
  if (schema->is_boolean()) return schema->get<bool>() ? std::vector<Schemas>{{}} : std::vector<Schemas>{};
  if (std::ranges::find(open_, schema) != open_.end()) fail(schema, "it refers to itself");
  if (open_.size() > kMaxDepth) fail(schema, "more than 100 schemas refer to one another");
  open_.push_back(schema);
  std::vector<Schemas> all{{}};
  const auto join = [&](const std::vector<Schemas>& more) { all = both(all, more, schema); };
  if (schema->contains("$ref") && ref_is_alone_) {
    join(alternatives(referred(schema)));
  } else {
    check(schema);
    // Members come in the order in which they are named, so keywords before `properties` come first.
    // Conditions name the same members again, so they come last.
    if (!schema->contains("properties")) join({{schema}});
    for (const auto& [key, value] : schema->items()) {
      if (key == "properties") join({{schema}});
      if (key == "$ref") join(alternatives(referred(schema)));
      if (key == "allOf")
        for (const Json* one : listed(schema, "allOf")) join(alternatives(one));
      if (key == "anyOf") {
        std::vector<Schemas> any;
        for (const Json* one : listed(schema, "anyOf"))
          for (Schemas& way : alternatives(one)) any.push_back(std::move(way));
        join(any);
      }
      if (key == "oneOf") join(one_of(schema));
    }
    for (const auto& [key, value] : schema->items()) {
      if (key == "not" && excluded(schema) == nullptr) join(none_of(within(schema, "not"), schema, "not"));
      if (key == "if" && (schema->contains("then") || schema->contains("else"))) join(conditional(schema));
      if (key == "dependencies" || key == "dependentRequired" || key == "dependentSchemas")
        for (const auto& [name, _] : value.items()) join(dependent(schema, key.c_str(), name));
    }
  }
  open_.pop_back();
  return all;
}

/// The alternatives of oneOf, each without the values that are also valid under another one.
std::vector<Schemas> SchemaReader::one_of(const Json* schema) {
  const Schemas list = listed(schema, "oneOf");
  std::vector<std::vector<Schemas>> each;
  for (const Json* one : list) each.push_back(alternatives(one));
  const auto are_excluded = [&](std::size_t i, std::size_t j) {
    return std::ranges::all_of(each[i], [&](const Schemas& one) {
      return std::ranges::all_of(each[j], [&](const Schemas& other) { return exclude(one, other, 0); });
    });
  };
  std::vector<std::optional<std::vector<Schemas>>> none(list.size());
  std::vector<Schemas> any;
  for (std::size_t i = 0; i < list.size(); ++i) {
    std::vector<Schemas> alone = each[i];
    for (std::size_t j = 0; j < list.size(); ++j) {
      if (i == j || are_excluded(std::min(i, j), std::max(i, j))) continue;
      if (!none[j]) none[j] = none_of(list[j], schema, "oneOf");
      alone = both(alone, *none[j], schema);
    }
    any.insert(any.end(), alone.begin(), alone.end());
  }
  return any;
}

/// The values for which `if` and `then` hold, and those for which `else` holds but `if` does not.
std::vector<Schemas> SchemaReader::conditional(const Json* schema) {
  const auto of = [&](const char* keyword) {
    return schema->contains(keyword) ? alternatives(within(schema, keyword)) : std::vector<Schemas>{{}};
  };
  std::vector<Schemas> any = both(of("if"), of("then"), schema);
  for (const Schemas& one : both(none_of(within(schema, "if"), schema, "if"), of("else"), schema))
    any.push_back(one);
  return any;
}

/// The alternatives for values that are not valid under `schema`, which `user` has below a keyword.
std::vector<Schemas> SchemaReader::none_of(const Json* schema, const Json* user, const char* keyword) {
  const auto all = negation(schema);
  if (!all)
    fail(user, keyword,
         keyword == std::string_view("oneOf") ? "two of its alternatives may hold at once; anyOf allows that"
                                              : "what is not valid under it cannot be described");
  if (all->empty()) return {};
  return alternatives(made({{"anyOf", *all}}, paths_.at(user) + "/" + keyword));
}

/// Returns schemas that negate this one: at least one of them holds for each value that is not valid under
/// it, and none for any other value. Returns nothing if the supported keywords cannot express that.
std::optional<std::vector<Json>> SchemaReader::negation(const Json* schema) {
  using Negation = std::optional<std::vector<Json>>;
  if (schema->is_boolean()) return schema->get<bool>() ? std::vector<Json>{} : std::vector<Json>{true};
  if (open_.size() > kMaxDepth || std::ranges::find(open_, schema) != open_.end()) return std::nullopt;
  check(schema);
  count(1);
  std::vector<Json> all;
  const auto join = [&](const Negation& more) {
    if (more) all.insert(all.end(), more->begin(), more->end());
    return more.has_value();
  };
  open_.push_back(schema);
  bool is_known = true;
  for (const auto& [key, value] : schema->items()) {
    if (schema->contains("$ref") && ref_is_alone_ && key != "$ref") continue;
    is_known = is_known && join(negation_of(schema, key, value));
  }
  open_.pop_back();
  return is_known ? Negation(std::move(all)) : std::nullopt;
}

/// Negates one keyword of a schema.
std::optional<std::vector<Json>> SchemaReader::negation_of(const Json* schema, const std::string& key,
                                                           const Json& value) {
  const auto is = [&](const char* keyword) {
    return schema->contains(keyword) && schema->at(keyword) == true;
  };
  const auto limit = [&](const char* type, const char* keyword, double number) {
    return std::vector<Json>{{{"type", type}, {keyword, number}}};
  };
  std::vector<Json> all;
  if (key == "type") {
    return std::vector<Json>{{{"not", {{"type", value}, {"nullable", is("nullable")}}}}};
  } else if (key == "enum" || key == "const") {
    return other_values(key == "enum" ? value.get<std::vector<Json>>() : std::vector<Json>{value});
  } else if (key == "minimum") {
    return limit("number", is("exclusiveMinimum") ? "maximum" : "exclusiveMaximum", value.get<double>());
  } else if (key == "maximum") {
    return limit("number", is("exclusiveMaximum") ? "minimum" : "exclusiveMinimum", value.get<double>());
  } else if (key == "exclusiveMinimum" || key == "exclusiveMaximum") {
    if (value.is_boolean()) return all;
    return limit("number", key == "exclusiveMinimum" ? "maximum" : "minimum", value.get<double>());
  } else if (key == "minLength" || key == "minItems" || key == "minProperties") {
    if (value == 0) return all;
    const std::string of = key.substr(3);
    return limit(type_with(of), ("max" + of).c_str(), value.get<double>() - 1);
  } else if (key == "maxLength" || key == "maxItems" || key == "maxProperties") {
    const std::string of = key.substr(3);
    return limit(type_with(of), ("min" + of).c_str(), value.get<double>() + 1);
  } else if (key == "required") {
    for (const Json& name : value)
      all.push_back({{"type", "object"}, {"properties", {{name.get<std::string>(), false}}}});
  } else if (key == "properties") {
    for (const auto& [name, one] : value.items()) {
      const auto none = negation(at(&one, paths_.at(schema) + "/properties/" + in_pointer(name)));
      if (!none) return none;
      if (none->empty()) continue;
      all.push_back({{"type", "object"},
                     {"required", Json::array({name})},
                     {"properties", {{name, {{"anyOf", *none}}}}}});
    }
  } else if (key == "pattern") {
    all.push_back({{"type", "string"}, {"not", {{"pattern", value}}}});
  } else if (key == "$ref") {
    return negation(referred(schema));
  } else if (key == "not") {
    all.push_back(value);
  } else if (key == "allOf" || key == "anyOf") {
    Json none_holds = Json::array();
    for (const Json* one : listed(schema, key)) {
      const auto none = negation(one);
      if (!none) return none;
      if (key == "allOf") all.insert(all.end(), none->begin(), none->end());
      if (key == "anyOf" && none->empty()) return none;
      none_holds.push_back({{"anyOf", *none}});
    }
    if (key == "anyOf") all.push_back({{"allOf", none_holds}});
  } else if ((key == "items" || key == "additionalItems" || key == "additionalProperties") &&
             (value == true || value == Json::object())) {
    // These keywords allow every value.
  } else if (key != "nullable" && key != "$id" && key != "id" && !(key == "uniqueItems" && value == false)) {
    for (const auto* list : {&kKeywords, &kNotBuilt})
      if (std::ranges::find(*list, key) != list->end()) return std::nullopt;
  }
  return all;
}

/// Schemas for all values except these; nothing if one of these is a list or an object.
std::optional<std::vector<Json>> SchemaReader::other_values(const std::vector<Json>& values) {
  std::set<std::string> types, strings;
  std::set<double> numbers;
  std::set<bool> booleans;
  for (const Json& value : values) {
    if (value.is_structured()) return std::nullopt;
    types.insert(value.is_number() ? "number" : value.type_name());
    if (value.is_number()) numbers.insert(value.get<double>());
    if (value.is_string()) strings.insert(value.get<std::string>());
    if (value.is_boolean()) booleans.insert(value.get<bool>());
  }
  if (values.empty()) return std::vector<Json>{true};
  std::vector<Json> all{{{"not", {{"type", types}}}}};
  if (booleans.size() == 1) all.push_back({{"const", !*booleans.begin()}});
  if (!strings.empty()) all.push_back({{"type", "string"}, {"not", {{"enum", strings}}}});
  // The ranges below the first number, between neighbouring numbers, and above the last.
  Json below{{"type", "number"}};
  for (const double number : numbers) {
    below["exclusiveMaximum"] = number;
    all.push_back(below);
    below = {{"type", "number"}, {"exclusiveMinimum", number}};
  }
  if (!numbers.empty()) all.push_back(below);
  return all;
}

/// The alternatives if others depend on the member `name`: it is missing, or the others are as the keyword
/// requires.
std::vector<Schemas> SchemaReader::dependent(const Json* schema, const std::string& keyword,
                                             const std::string& name) {
  const Json& what = schema->at(keyword).at(name);
  const std::string path = paths_.at(schema) + "/" + keyword + "/" + in_pointer(name);
  const bool are_names =
      what.is_array() && std::ranges::all_of(what, [](const Json& one) { return one.is_string(); });
  if (!are_names && (what.is_array() || keyword == "dependentRequired"))
    fail_at(path, "it must be a list of names");
  std::vector<Schemas> all{{made({{"properties", {{name, false}}}}, path)}};
  const Json* then = are_names ? made({{"required", what}}, path) : at(&what, path);
  for (const Schemas& way : both({{made({{"required", {name}}}, path)}}, alternatives(then), schema))
    all.push_back(way);
  // Values other than objects depend on nothing.
  all.push_back({made({{"type", {"null", "boolean", "number", "string", "array"}}}, path)});
  return all;
}

const Json* SchemaReader::excluded(const Json* schema) {
  if (!schema->contains("not") || !schema->at("not").is_object()) return nullptr;
  const Json& none = schema->at("not");
  const auto is_string = [](const Json& value) { return value.is_string(); };
  const bool is_plain = none.contains("type") ? none.size() == (none.contains("nullable") ? 2 : 1)
                        : none.contains("enum")
                            ? none.size() == 1 && std::ranges::all_of(none.at("enum"), is_string)
                            : none.size() == 1 && none.contains("pattern");
  return is_plain ? &none : nullptr;
}

const Json* SchemaReader::made(Json schema, const std::string& path) {
  const Json* added = &added_.emplace_back(std::move(schema));
  paths_[added] = path;
  check(added);
  return added;
}

const Json* SchemaReader::referred(const Json* schema) {
  const Json& reference = schema->at("$ref");
  if (!reference.is_string()) fail(schema, "$ref", "it must be a string");
  const std::string text = percent_decoded(reference.get<std::string>());
  if (text != "#" && !text.starts_with("#/"))
    fail(schema, "$ref", "only references within the schema are followed, as in #/$defs/name");
  const Json* found = &document_;
  std::string path;
  for (std::size_t from = 2; from <= text.size();) {
    const std::size_t to = std::min(text.find('/', from), text.size());
    std::string name = text.substr(from, to - from);
    path += "/" + name;
    for (const auto& [written, meant] : {std::pair("~1", "/"), std::pair("~0", "~")})
      for (std::size_t i = 0; (i = name.find(written, i)) != name.npos; ++i) name.replace(i, 2, meant);
    const bool is_index =
        !name.empty() && name.size() < 8 && name.find_first_not_of("0123456789") == name.npos;
    if (found->is_object() && found->contains(name))
      found = &found->at(name);
    else if (found->is_array() && is_index && std::stoul(name) < found->size())
      found = &(*found)[std::stoul(name)];
    else
      fail(schema, "$ref", "there is nothing at " + printable(text));
    if (found->is_object() && found->contains("$id") && found->at("$id").is_string())
      fail(schema, "$ref", "a schema with an $id of its own lies on the way");
    from = to + 1;
  }
  return at(found, path);
}

/// Whether no value is valid under both, judging only by types, values, and the values of required
/// properties.
bool SchemaReader::exclude(const Schemas& one, const Schemas& other, int depth) {
  Schemas both = one;
  both.insert(both.end(), other.begin(), other.end());
  const int types = types_of(both);
  if (types == 0) return true;
  if (const auto values = values_of(both)) return values->empty();
  if (types != kObject || depth == 3) return false;
  for (const std::string& name : required_in(both)) {
    const std::size_t open = open_.size();
    try {
      bool are_excluded = true;
      for (const Schemas& a : alternatives(member(one, name)))
        for (const Schemas& b : alternatives(member(other, name))) are_excluded &= exclude(a, b, depth + 1);
      if (are_excluded) return true;
    } catch (const UsageError&) {  // for example a reference back to here; another property may decide
      open_.resize(open);
    }
  }
  return false;
}

// ── What a schema may contain ──

void SchemaReader::check(const Json* schema) {
  if (!checked_.insert(schema).second) return;
  const bool is_root = schema == &document_;
  for (const auto& [key, value] : schema->items()) {
    const auto need = [&, &key = key](bool is_right, std::string_view what) {
      if (!is_right) fail(schema, in_pointer(key), fmt::format("it must be {}", what));
    };
    const auto is_count = [](const Json& value) {
      return value.is_number() && value.get<double>() >= 0 && is_whole(value);
    };
    if (key == "type") {
      need(value.is_string() || (value.is_array() && !value.empty()),
           "the name of a type or a list of names");
      types_of(schema);
    } else if (key == "enum" || key == "anyOf" || key == "oneOf" || key == "allOf") {
      need(value.is_array() && (!value.empty() || key == "enum"), "a list that is not empty");
    } else if (key == "properties" || key == "patternProperties") {
      need(value.is_object(), "an object of schemas");
    } else if (key == "required") {
      need(value.is_array() && std::ranges::all_of(value, [](const Json& name) { return name.is_string(); }),
           "a list of names");
    } else if (key == "minItems" || key == "maxItems" || key == "minLength" || key == "maxLength" ||
               key == "minProperties" || key == "maxProperties") {
      need(is_count(value), "a whole number that is not negative");
    } else if (key == "minimum" || key == "maximum") {
      need(value.is_number(), "a number");
    } else if (key == "exclusiveMinimum" || key == "exclusiveMaximum") {
      need(value.is_number() || value.is_boolean(), "a number");
    } else if (key == "pattern" || key == "format") {
      need(value.is_string(), "a string");
    } else if (key == "dependencies" || key == "dependentRequired" || key == "dependentSchemas") {
      need(value.is_object(), "an object");
    } else if (key == "prefixItems") {
      need(value.is_array(), "a list of schemas");
    } else if (key == "not") {
      const Json* const inner = within(schema, key);
      if (excluded(schema) != nullptr) check(inner);
    } else if (key == "nullable") {
      need(value.is_boolean(), "true or false");
    } else if (key == "items" || key == "additionalItems" || key == "additionalProperties" || key == "$ref" ||
               key == "const" || key == "if" || key == "then" || key == "else") {
      // These keywords are read where they are used.
    } else if ((key == "$id" || key == "id") &&
               (is_root || !value.is_string() || value.get<std::string>().starts_with("#") ||
                !refers(*schema))) {
      // It names the whole document, or changes the meaning of no reference.
    } else if (key == "uniqueItems" && value == false) {
      // This setting changes nothing.
    } else if (std::ranges::find(kNotBuilt, key) != kNotBuilt.end()) {
      fail(schema, in_pointer(key), "this keyword is not supported");
    } else if (!notes_.contains(key)) {
      if (const auto meant = meant_by(key))
        fail(schema, in_pointer(key), fmt::format("there is no such keyword; did you mean {}?", *meant));
      notes_.insert(key);
    }
  }
}

bool SchemaReader::is_whole(const Json& value) {
  return value.is_number() &&
         (!value.is_number_float() || std::floor(value.get<double>()) == value.get<double>());
}

int SchemaReader::types_of(const Json* schema) const {
  const int types = named_types(schema);
  const Json* const none = excluded(schema);
  if (none != nullptr && none->contains("type")) return types & ~named_types(none);
  if (none != nullptr && none->contains("pattern")) return types & kString;  // `not` holds for all others
  return types;
}

int SchemaReader::named_types(const Json* schema) const {
  if (!schema->contains("type")) return kAllTypes;
  static const std::map<std::string, int> known{
      {"null", kNull},     {"boolean", kBoolean}, {"integer", kWhole}, {"number", kWhole | kFraction},
      {"string", kString}, {"array", kArray},     {"object", kObject}};
  const Json& type = schema->at("type");
  int types = schema->contains("nullable") && schema->at("nullable") == true ? kNull : 0;
  for (const Json& name : type.is_array() ? type : Json::array({type})) {
    const auto found = name.is_string() ? known.find(name.get<std::string>()) : known.end();
    if (found == known.end())
      fail(schema, "type", "the types are null, boolean, integer, number, string, array and object");
    types |= found->second;
  }
  return types;
}

int SchemaReader::types_of(const Schemas& all) const {
  int types = kAllTypes;
  for (const Json* schema : all) types &= types_of(schema);
  return types;
}

std::optional<std::vector<Json>> SchemaReader::values_of(const Schemas& all) {
  std::optional<std::vector<Json>> left;
  for (const Json* schema : all) {
    for (const char* keyword : {"enum", "const"}) {
      if (!schema->contains(keyword)) continue;
      std::vector<Json> values{schema->at(keyword)};
      if (keyword == std::string_view("enum")) values = schema->at(keyword).get<std::vector<Json>>();
      const auto is_in = [](const Json& value, const std::vector<Json>& list) {
        return std::ranges::any_of(list, [&](const Json& one) { return is_same(one, value); });
      };
      if (!left)
        left = values;
      else
        std::erase_if(*left, [&](const Json& value) { return !is_in(value, values); });
      count(values.size());
    }
  }
  if (left) {
    const int types = types_of(all);
    std::erase_if(*left,
                  [&](const Json& value) { return !(types & type_of(value)) || !is_valid(value, all); });
  }
  return left;
}

/// Whether a value inside a value of an enum is valid.
bool SchemaReader::holds(const Json& value, const Json* schema) {
  return std::ranges::any_of(alternatives(schema), [&](const Schemas& all) {
    const auto values = values_of(all);
    if (!values) return (types_of(all) & type_of(value)) != 0 && is_valid(value, all);
    return std::ranges::any_of(*values, [&](const Json& one) { return is_same(one, value); });
  });
}

/// Whether a value of an enum is valid under the other keywords.
bool SchemaReader::is_valid(const Json& value, const Schemas& all) {
  for (const Json* schema : all) {
    for (const auto& [key, limit] : schema->items()) {
      const bool is_string = value.is_string(), is_list = value.is_array(), is_object = value.is_object();
      const bool is_plain_items = key == "items" && !limit.is_array() && !schema->contains("prefixItems");
      if ((is_string && key == "format") || (is_list && key == "prefixItems") ||
          (is_list && key == "items" && !is_plain_items) ||
          (is_object && (key == "additionalProperties" || key == "patternProperties")))
        fail(schema, key, "beside enum or const, this keyword is not supported");
      if (is_string) {
        if (key == "pattern" && !matches(schema, limit.get<std::string>(), value)) return false;
      }
      if (is_list && is_plain_items) {
        const Json* const items = within(schema, key);
        if (!std::ranges::all_of(value, [&](const Json& one) { return holds(one, items); })) return false;
      }
      if (is_object && key == "properties")
        for (const auto& [name, one] : value.items())
          if (const Json* const member = property(schema, name);
              member != nullptr &&
              !holds(one, at(member, paths_.at(schema) + "/properties/" + in_pointer(name))))
            return false;
      if (is_object && key == "required" &&
          !std::ranges::all_of(limit, [&](const Json& name) { return value.contains(name); }))
        return false;
      for (const auto& [is_such, of] : {std::pair(is_string, "Length"), std::pair(is_list, "Items"),
                                        std::pair(is_object, "Properties")}) {
        const double size = is_string ? characters_in(value) : static_cast<double>(value.size());
        if (is_such && key == std::string("min") + of && size < limit.get<double>()) return false;
        if (is_such && key == std::string("max") + of && size > limit.get<double>()) return false;
      }
    }
    const Json* const none = excluded(schema);
    if (none != nullptr && value.is_string() &&
        (none->contains("pattern")
             ? matches(schema, none->at("pattern"), value)
             : none->contains("enum") && std::ranges::count(none->at("enum"), value) > 0))
      return false;
    if (value.is_number()) {
      const Bounds bounds = bounds_of({schema});
      const double number = value.get<double>();
      if ((bounds.least && (number < *bounds.least || (bounds.excludes_least && number == *bounds.least))) ||
          (bounds.most && (number > *bounds.most || (bounds.excludes_most && number == *bounds.most))))
        return false;
    }
  }
  return true;
}

SchemaReader::Bounds SchemaReader::bounds_of(const Schemas& all) {
  Bounds bounds;
  const auto tighten_least = [&](double limit, bool excludes, const Json* by) {
    if (bounds.least && (*bounds.least > limit || (*bounds.least == limit && bounds.excludes_least))) return;
    bounds.least = limit, bounds.excludes_least = excludes, bounds.least_by = by;
  };
  const auto tighten_most = [&](double limit, bool excludes, const Json* by) {
    if (bounds.most && (*bounds.most < limit || (*bounds.most == limit && bounds.excludes_most))) return;
    bounds.most = limit, bounds.excludes_most = excludes, bounds.most_by = by;
  };
  for (const Json* schema : all) {
    const auto is = [&](const char* key, bool wanted) {
      return schema->contains(key) && schema->at(key) == wanted;
    };
    const auto has = [&](const char* key) { return schema->contains(key) && schema->at(key).is_number(); };
    if (has("minimum"))
      tighten_least(schema->at("minimum").get<double>(), is("exclusiveMinimum", true), schema);
    if (has("maximum"))
      tighten_most(schema->at("maximum").get<double>(), is("exclusiveMaximum", true), schema);
    if (has("exclusiveMinimum")) tighten_least(schema->at("exclusiveMinimum").get<double>(), true, schema);
    if (has("exclusiveMaximum")) tighten_most(schema->at("exclusiveMaximum").get<double>(), true, schema);
  }
  return bounds;
}

std::optional<int> SchemaReader::counted(const Schemas& all, const char* keyword, bool takes_largest) {
  std::optional<int> found;
  for (const Json* schema : all) {
    if (!schema->contains(keyword)) continue;
    const int limit = static_cast<int>(std::min(schema->at(keyword).get<double>(), 1e9));
    found = !found ? limit : takes_largest ? std::max(*found, limit) : std::min(*found, limit);
  }
  return found;
}

}  // namespace staircase
