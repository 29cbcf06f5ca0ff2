#include "common/text/json_schema.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json_file.h"
#include "common/base/quoted.h"
#include "common/text/code_points.h"
#include "common/text/number_ranges.h"

namespace staircase {

namespace {

using Json = nlohmann::ordered_json;
using Kind = RegexPart::Kind;

constexpr std::size_t kMaxBytes = 1'000'000, kMaxDepth = 100;
constexpr int kMaxParts = 1'000'000, kMaxAlternatives = 1'000;

/// The types of values, as bits. A number is whole or has a fraction.
enum Type {
  kNull = 1,
  kBoolean = 2,
  kWhole = 4,
  kFraction = 8,
  kString = 16,
  kArray = 32,
  kObject = 64,
  kAll = 127
};

constexpr std::string_view kNotes[] = {"title",       "description", "default",  "examples",
                                       "example",     "$schema",     "$comment", "$defs",
                                       "definitions", "deprecated",  "readOnly", "writeOnly"};
// RFC 3339, RFC 4122, RFC 2673 and RFC 5321. Days fit their months, and the 29th of February its year.
constexpr const char* kDate =
    "(((000[1-9]|00[1-9]\\d|0[1-9]\\d{2}|[1-9]\\d{3})-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-("
    "0[1-9]|[12]\\d|30)|"
    "02-(0[1-9]|1\\d|2[0-8])))|(\\d{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-"
    "29)";
constexpr const char* kTime =
    "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?([Zz]|[-+]([01]\\d|2[0-3]):[0-5]\\d)";
constexpr const char* kIpv4 =
    "((25[0-5]|2[0-4]\\d|1\\d{2}|[1-9]?\\d)\\.){3}(25[0-5]|2[0-4]\\d|1\\d{2}|[1-9]?\\d)";
constexpr const char* kUuid = "[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}";
constexpr const char* kEmail =
    "([\\w!#$%&'*+/=?\\^`\\{|\\}~-]+(\\.[\\w!#$%&'*+/=?\\^`\\{|\\}~-]+)*|\"([ !#-\\[\\]-~]|\\\\[ -~])*\")@"
    "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*";

/// Schemas that all must hold for a value.
using Schemas = std::vector<const Json*>;

RegexPart sequence(std::vector<RegexPart> parts) {
  return {Kind::kSequence, std::move(parts)};
}
RegexPart choice(std::vector<RegexPart> parts) {
  return {Kind::kChoice, std::move(parts)};
}
RegexPart rule_part(int rule) {
  RegexPart part{Kind::kRule};
  part.rule = rule;
  return part;
}

class Compiler {
 public:
  Compiler(Json schema, const WriteMembers& write) : document_(std::move(schema)), write_(write) {
    paths_[&document_] = "";
    const Json id = document_.is_object() ? document_.value("$schema", Json()) : Json();
    for (const std::string_view old : {"draft-03", "draft-04", "draft-06", "draft-07"})
      ref_is_alone_ |= id.is_string() && id.get<std::string>().find(old) != std::string::npos;
  }

  GrammarRules rules() {
    rule_for({&document_}, "root");
    for (; !todo_.empty();) {
      const auto [rule, schemas] = todo_.back();
      todo_.pop_back();
      RegexPart part = choice({});
      for (const Schemas& all : alternatives(schemas)) part.parts.push_back(value(all));
      rules_[rule].part = std::move(part);
    }
    if (!keep_finite(rules_)) throw UsageError("no JSON value is valid under the schema");
    return std::move(rules_);
  }

 private:
  [[noreturn]] void fail(const std::string& path, std::string_view what) const {
    throw UsageError("the schema cannot be used at {}: {}", path.empty() ? "its root" : harmless(path), what);
  }
  [[noreturn]] void fail(const Json* schema, const std::string& keyword, std::string_view what) const {
    fail(paths_.at(schema) + "/" + keyword, what);
  }

  /// A schema within another one; remembers where it is.
  const Json* within(const Json* schema, const std::string& keyword, const std::string& name = "") {
    const Json& found = name.empty() ? schema->at(keyword) : schema->at(keyword).at(name);
    return at(&found, paths_.at(schema) + "/" + keyword + (name.empty() ? "" : "/" + in_path(name)));
  }
  const Json* at(const Json* schema, const std::string& path) {
    paths_.try_emplace(schema, path);
    if (!schema->is_object() && !schema->is_boolean()) fail(path, "a schema is an object, true or false");
    return schema;
  }
  /// The schemas in a list.
  Schemas listed(const Json* schema, const std::string& keyword) {
    Schemas all;
    for (std::size_t i = 0; i < schema->at(keyword).size(); ++i)
      all.push_back(at(&schema->at(keyword)[i], fmt::format("{}/{}/{}", paths_.at(schema), keyword, i)));
    return all;
  }
  static std::string in_path(const std::string& name) {
    std::string written;
    for (const char c : name) written += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
    return written;
  }

  /// A rule for the values under all of these schemas, which is written later.
  RegexPart rule_for(Schemas schemas, const std::string& name = "value") {
    std::ranges::sort(schemas);
    schemas.erase(std::unique(schemas.begin(), schemas.end()), schemas.end());
    const auto [known, is_new] = known_.try_emplace(schemas, static_cast<int>(rules_.size()));
    if (is_new) {
      rules_.push_back({name, choice({})});
      todo_.emplace_back(known->second, std::move(schemas));
    }
    return rule_part(known->second);
  }
  /// A rule of its own for a part that many use.
  RegexPart shared(const std::string& name, const std::function<RegexPart()>& part) {
    const auto [known, is_new] = shared_.try_emplace(name, static_cast<int>(rules_.size()));
    if (is_new) {
      rules_.push_back({name, choice({})});
      RegexPart made = part();
      rules_[known->second].part = std::move(made);
    }
    return rule_part(known->second);
  }
  RegexPart space() {
    return shared("space", [] {
      RegexPart blanks{Kind::kRepeat, {any_of({{' ', ' '}, {'\t', '\t'}})}};
      blanks.most = 20;
      return choice({sequence({}), bytes_of(" "), sequence({bytes_of("\n"), blanks})});
    });
  }
  RegexPart comma() {
    return shared("comma", [&] { return sequence({bytes_of(","), space()}); });
  }
  void count(std::size_t parts) {
    made_ += parts;
    if (made_ > kMaxParts) throw UsageError("the schema has more than {} parts as a grammar", kMaxParts);
  }

  // --- Which schemas hold together ---

  /// The ways in which all schemas can hold, each as schemas of which only the keywords beside anyOf and the
  /// like matter.
  std::vector<Schemas> alternatives(const Schemas& schemas) {
    std::vector<Schemas> all{{}};
    for (const Json* schema : schemas) all = both(all, alternatives(schema), schema);
    return all;
  }
  std::vector<Schemas> both(const std::vector<Schemas>& some, const std::vector<Schemas>& others,
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
    if (all.size() > kMaxAlternatives)
      fail(paths_.at(place), "it has more than 1000 combinations of alternatives");
    return all;
  }
  std::vector<Schemas> alternatives(const Json* schema) {
    if (schema->is_boolean()) return schema->get<bool>() ? std::vector<Schemas>{{}} : std::vector<Schemas>{};
    if (std::ranges::find(open_, schema) != open_.end()) fail(paths_.at(schema), "it refers to itself");
    if (open_.size() > kMaxDepth) fail(paths_.at(schema), "more than 100 schemas refer to one another");
    open_.push_back(schema);
    std::vector<Schemas> all{{schema}};
    if (schema->contains("$ref") && ref_is_alone_) {
      all = alternatives(referred(schema));
    } else {
      check(schema);
      if (schema->contains("$ref")) all = both(all, alternatives(referred(schema)), schema);
      if (schema->contains("allOf"))
        for (const Json* one : listed(schema, "allOf")) all = both(all, alternatives(one), schema);
      if (schema->contains("anyOf")) {
        std::vector<Schemas> any;
        for (const Json* one : listed(schema, "anyOf"))
          for (Schemas& way : alternatives(one)) any.push_back(std::move(way));
        all = both(all, any, schema);
      }
      if (schema->contains("oneOf")) all = both(all, one_of(schema), schema);
    }
    open_.pop_back();
    return all;
  }
  std::vector<Schemas> one_of(const Json* schema) {
    std::vector<std::vector<Schemas>> each;
    for (const Json* one : listed(schema, "oneOf")) each.push_back(alternatives(one));
    std::vector<Schemas> any;
    for (std::size_t i = 0; i < each.size(); ++i) {
      for (const Schemas& one : each[i]) {
        for (const Schemas& other : any)
          if (!exclude(one, other, 0))
            fail(schema, "oneOf", "two of its alternatives may hold at once; anyOf allows that");
      }
      any.insert(any.end(), each[i].begin(), each[i].end());
    }
    return any;
  }

  const Json* referred(const Json* schema) {
    const Json& reference = schema->at("$ref");
    if (!reference.is_string()) fail(schema, "$ref", "it must be a string");
    const std::string text = percent_decoded(reference.get<std::string>());
    if (text != "#" && !text.starts_with("#/"))
      fail(schema, "$ref", "only places within the schema are followed, as in #/$defs/name");
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
        fail(schema, "$ref", "there is nothing at " + harmless(text));
      if (found->is_object() && found->contains("$id") && found->at("$id").is_string())
        fail(schema, "$ref", "a schema with an $id of its own lies on the way");
      from = to + 1;
    }
    return at(found, path);
  }
  std::string percent_decoded(const std::string& text) const {
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

  // --- What a schema may say ---

  void check(const Json* schema) {
    if (!checked_.insert(schema).second) return;
    const bool is_root = schema == &document_;
    for (const auto& [key, value] : schema->items()) {
      const auto need = [&, &key = key](bool is_right, std::string_view what) {
        if (!is_right) fail(schema, in_path(key), fmt::format("it must be {}", what));
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
      } else if (key == "properties") {
        need(value.is_object(), "an object of schemas");
      } else if (key == "required") {
        need(
            value.is_array() && std::ranges::all_of(value, [](const Json& name) { return name.is_string(); }),
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
      } else if (key == "prefixItems") {
        need(value.is_array(), "a list of schemas");
      } else if (key == "nullable") {
        need(value.is_boolean(), "true or false");
      } else if (key == "items" || key == "additionalItems" || key == "additionalProperties" ||
                 key == "$ref" || key == "const") {
        // These are read where they are used.
      } else if ((key == "$id" || key == "id") &&
                 (is_root || !value.is_string() || value.get<std::string>().starts_with("#"))) {
        // It names the whole.
      } else if ((key == "uniqueItems" && value == false) ||
                 (key == "patternProperties" && value == Json::object())) {
        // These change nothing.
      } else if (std::ranges::find(kNotes, key) == std::end(kNotes)) {
        fail(schema, in_path(key), "this keyword is not supported");
      }
    }
  }
  static bool is_whole(const Json& value) {
    return value.is_number() &&
           (!value.is_number_float() || std::floor(value.get<double>()) == value.get<double>());
  }

  int types_of(const Json* schema) {
    if (!schema->contains("type")) return kAll;
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
  int types_of(const Schemas& all) {
    int types = kAll;
    for (const Json* schema : all) types &= types_of(schema);
    return types;
  }
  static int type_of(const Json& value) {
    if (value.is_number()) return is_whole(value) ? kWhole : kFraction;
    return value.is_null()      ? kNull
           : value.is_boolean() ? kBoolean
           : value.is_string()  ? kString
           : value.is_array()   ? kArray
                                : kObject;
  }

  /// The values that enum and const leave, if a schema has either.
  std::optional<std::vector<Json>> values_of(const Schemas& all) {
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
  static bool is_same(const Json& one, const Json& other) {
    if (one.is_object() && other.is_object()) {  // in any order
      return one.size() == other.size() && std::ranges::all_of(one.items(), [&](const auto& item) {
               return other.contains(item.key()) && is_same(item.value(), other.at(item.key()));
             });
    }
    if (one.is_array() && other.is_array())
      return std::equal(one.begin(), one.end(), other.begin(), other.end(), is_same);
    return one == other;
  }
  /// Whether a value of an enum is valid under the other keywords.
  bool is_valid(const Json& value, const Schemas& all) {
    for (const Json* schema : all) {
      for (const auto& [key, limit] : schema->items()) {
        const bool is_string = value.is_string(), is_list = value.is_array(), is_object = value.is_object();
        const bool of_string = key == "minLength" || key == "maxLength";
        if ((is_string && (key == "pattern" || key == "format")) ||
            (is_list && (key == "items" || key == "prefixItems" || key == "minItems" || key == "maxItems")) ||
            (is_object && (key == "properties" || key == "required" || key == "additionalProperties" ||
                           key == "minProperties" || key == "maxProperties")))
          fail(schema, key, "beside enum or const, this keyword is not supported");
        if (is_string && of_string) {
          const std::string& text = value.get_ref<const std::string&>();
          const auto length =
              static_cast<double>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
          if (key == "minLength" ? length < limit.get<double>() : length > limit.get<double>()) return false;
        }
      }
      if (value.is_number()) {
        const Bounds bounds = bounds_of({schema});
        const double number = value.get<double>();
        if ((bounds.least &&
             (number < *bounds.least || (bounds.excludes_least && number == *bounds.least))) ||
            (bounds.most && (number > *bounds.most || (bounds.excludes_most && number == *bounds.most))))
          return false;
      }
    }
    return true;
  }

  /// Whether no value is valid under both, as far as types, values, and the values of required properties
  /// tell.
  bool exclude(const Schemas& one, const Schemas& other, int depth) {
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
      } catch (const UsageError&) {  // such as a reference back to here; another property may tell
        open_.resize(open);
      }
    }
    return false;
  }

  // --- Values ---

  RegexPart value(const Schemas& all) {
    RegexPart part = choice({});
    if (const auto values = values_of(all)) {
      std::set<std::string> plain;
      for (const Json& one : *values) {
        if (one.is_structured())
          part.parts.push_back(literal(one, all));
        else
          plain.insert(text_of(one, all));
      }
      const std::vector<std::string> sorted(plain.begin(), plain.end());
      if (!sorted.empty()) part.parts.push_back(one_of_texts(sorted, 0));
      return part;
    }
    const int types = types_of(all);
    if (types & kNull) part.parts.push_back(bytes_of("null"));
    if (types & kBoolean) part.parts.push_back(choice({bytes_of("true"), bytes_of("false")}));
    if (types & kWhole) part.parts.push_back(number(all, (types & kFraction) != 0));
    if (types & kString) part.parts.push_back(string(all));
    if (types & kArray) part.parts.push_back(array(all));
    if (types & kObject) part.parts.push_back(object(all));
    count(10);
    return part;
  }

  std::string text_of(const Json& value, const Schemas& all) {
    if (!value.is_number_float()) return value.dump();
    const double number = value.get<double>();
    if (std::abs(number) >= 9e15)
      fail(paths_.at(all.front()), "a number above 9e15 in an enum may be rounded");
    return is_whole(value) ? std::to_string(static_cast<long long>(number)) : value.dump();
  }
  RegexPart literal(const Json& value, const Schemas& all) {
    if (!value.is_structured()) {
      const std::string text = text_of(value, all);
      count(text.size());
      return bytes_of(text);
    }
    const bool is_list = value.is_array();
    RegexPart part = sequence({bytes_of(is_list ? "[" : "{"), space()});
    bool is_first = true;
    for (const auto& [key, one] : value.items()) {
      if (!std::exchange(is_first, false)) part.parts.push_back(comma());
      if (!is_list) part.parts.push_back(name(key));
      part.parts.push_back(literal(one, all));
    }
    part.parts.push_back(space());
    part.parts.push_back(bytes_of(is_list ? "]" : "}"));
    return part;
  }
  /// A name with its colon.
  RegexPart name(const std::string& key) {
    const std::string text = Json(key).dump();
    count(text.size());
    return sequence({bytes_of(text + ":"), space()});
  }
  /// One of these texts, which begin alike up to `from`: a byte is read once for all of them.
  RegexPart one_of_texts(std::span<const std::string> texts, std::size_t from) {
    const std::string &first = texts.front(), &last = texts.back();
    std::size_t to = from;
    while (to < first.size() && to < last.size() && first[to] == last[to]) ++to;
    RegexPart part = bytes_of(first.substr(from, to - from));
    count(to - from + 2);
    if (texts.size() == 1) return part;
    RegexPart rest = choice({});
    for (std::size_t i = 0, next = 0; i < texts.size(); i = next) {
      for (next = i + 1; next < texts.size() && texts[i].size() > to && texts[next][to] == texts[i][to];)
        ++next;
      rest.parts.push_back(texts[i].size() == to ? sequence({})
                                                 : one_of_texts(texts.subspan(i, next - i), to));
    }
    part.parts.push_back(std::move(rest));
    return part;
  }

  struct Bounds {
    std::optional<double> least = {}, most = {};
    bool excludes_least = false, excludes_most = false;
    const Json* least_by = nullptr;
    const Json* most_by = nullptr;
  };
  Bounds bounds_of(const Schemas& all) {
    Bounds bounds;
    const auto tighten_least = [&](double limit, bool excludes, const Json* by) {
      if (bounds.least && (*bounds.least > limit || (*bounds.least == limit && bounds.excludes_least)))
        return;
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

  RegexPart number(const Schemas& all, bool may_have_fraction) {
    const Bounds bounds = bounds_of(all);
    if (!bounds.least && !bounds.most) {
      return shared(may_have_fraction ? "number" : "integer",
                    [&] { return may_have_fraction ? any_number() : any_integer(); });
    }
    constexpr double largest = 1e15;
    for (const auto& [limit, by, keyword] : {std::tuple(bounds.least, bounds.least_by, "minimum"),
                                             std::tuple(bounds.most, bounds.most_by, "maximum")}) {
      if (limit && std::abs(*limit) > largest) fail(by, keyword, "bounds beyond 1e15 are not supported");
      if (limit && may_have_fraction && std::floor(*limit) != *limit)
        fail(by, keyword, "for numbers with a fraction, only whole bounds are supported");
    }
    count(500);
    if (may_have_fraction) {
      return fraction_range(
          bounds.least ? std::optional(static_cast<long long>(*bounds.least)) : std::nullopt,
          bounds.most ? std::optional(static_cast<long long>(*bounds.most)) : std::nullopt,
          bounds.excludes_least, bounds.excludes_most);
    }
    std::optional<long long> least, most;
    if (bounds.least)
      least = static_cast<long long>(bounds.excludes_least ? std::floor(*bounds.least) + 1
                                                           : std::ceil(*bounds.least));
    if (bounds.most)
      most = static_cast<long long>(bounds.excludes_most ? std::ceil(*bounds.most) - 1
                                                         : std::floor(*bounds.most));
    return integer_range(least, most);
  }

  /// The largest or smallest count that a keyword of these schemas may have.
  static std::optional<int> counted(const Schemas& all, const char* keyword, bool takes_largest) {
    std::optional<int> found;
    for (const Json* schema : all) {
      if (!schema->contains(keyword)) continue;
      const int limit = static_cast<int>(std::min(schema->at(keyword).get<double>(), 1e9));
      found = !found ? limit : takes_largest ? std::max(*found, limit) : std::min(*found, limit);
    }
    return found;
  }
  static RegexPart repeated(RegexPart part, int least, int most) {
    RegexPart all{Kind::kRepeat, {std::move(part)}};
    all.least = least, all.most = most;
    return most == 0 ? sequence({}) : all;
  }

  RegexPart character() {
    return shared("character", [] {
      const RegexPart hex = any_of({{'0', '9'}, {'a', 'f'}, {'A', 'F'}});
      const auto set = [](std::string_view characters) {
        CodePoints all;
        for (const char c : characters) all.emplace_back(c, c);
        return any_of(all);
      };
      return choice({any_of(all_but({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}})),
                     sequence({bytes_of("\\"), set("\"\\/bfnrt")}),
                     sequence({bytes_of("\\u"), set("0123456789abcABCefEF"), hex, hex, hex}),
                     sequence({bytes_of("\\u"), set("dD"), set("01234567"), hex, hex}),
                     sequence({bytes_of("\\u"), set("dD"), set("89abAB"), hex, hex, bytes_of("\\u"),
                               set("dD"), set("cdefCDEF"), hex, hex})});
    });
  }
  RegexPart in_quotes(RegexPart part) { return sequence({bytes_of("\""), std::move(part), bytes_of("\"")}); }

  RegexPart string(const Schemas& all) {
    static const std::map<std::string, std::string> formats{
        {"date", kDate}, {"time", kTime}, {"date-time", std::string(kDate) + "[Tt]" + kTime},
        {"uuid", kUuid}, {"ipv4", kIpv4}, {"email", kEmail}};
    std::map<std::string, std::pair<const Json*, std::string>> patterns;  // and who has them by which keyword
    for (const Json* schema : all) {
      if (schema->contains("pattern"))
        patterns[schema->at("pattern").get<std::string>()] = {schema, "pattern"};
      if (!schema->contains("format")) continue;
      const auto known = formats.find(schema->at("format").get<std::string>());
      if (known == formats.end())
        fail(schema, "format", "of the formats, there are date, time, date-time, uuid, ipv4 and email");
      patterns["^(" + known->second + ")$"] = {schema, "format"};
    }
    const int least = counted(all, "minLength", true).value_or(0);
    const int most = counted(all, "maxLength", false).value_or(RegexPart::kNoLimit);
    if (most != RegexPart::kNoLimit && most < least) return choice({});
    if (patterns.empty()) return in_quotes(repeated(character(), least, most));
    const auto& [pattern, place] = *patterns.begin();
    const auto& [schema, keyword] = place;
    if (patterns.size() > 1)
      fail(schema, keyword, "two patterns or formats for one string are not supported");
    if (least > 0 || most != RegexPart::kNoLimit)
      fail(schema, keyword, "beside minLength or maxLength, it is not supported");
    count(5'000);
    return shared("pattern " + pattern, [&, &pattern = pattern, &schema = schema, &keyword = keyword] {
      try {
        return in_quotes(parse_json_pattern(pattern, character()));
      } catch (const UsageError& error) {
        fail(schema, keyword, error.what());
      }
    });
  }

  RegexPart array(const Schemas& all) {
    const int least = counted(all, "minItems", true).value_or(0);
    const int most = counted(all, "maxItems", false).value_or(RegexPart::kNoLimit);
    if (most != RegexPart::kNoLimit && most < least) return choice({});
    std::size_t known = 0;
    const auto prefix = [](const Json* schema) {
      return schema->contains("prefixItems")                               ? "prefixItems"
             : schema->contains("items") && schema->at("items").is_array() ? "items"
                                                                           : "";
    };
    for (const Json* schema : all)
      if (*prefix(schema) != '\0') known = std::max(known, schema->at(prefix(schema)).size());
    std::vector<Schemas> prefixes;
    for (const Json* schema : all)
      prefixes.push_back(*prefix(schema) == '\0' ? Schemas() : listed(schema, prefix(schema)));
    const auto item = [&](std::size_t i) {
      Schemas schemas;
      for (std::size_t k = 0; k < all.size(); ++k) {
        const char* others = prefix(all[k]) == std::string_view("items") ? "additionalItems" : "items";
        if (i < prefixes[k].size())
          schemas.push_back(prefixes[k][i]);
        else if (all[k]->contains(others))
          schemas.push_back(within(all[k], others));
      }
      return rule_for(schemas);
    };
    const int first = static_cast<int>(known);
    if (most != RegexPart::kNoLimit) known = std::min<std::size_t>(known, most);
    count(10 * known);
    const int left = most == RegexPart::kNoLimit ? most : std::max(0, most - first);
    // From the last item to the first: what may follow the items before it.
    RegexPart rest = repeated(sequence({comma(), item(first)}), std::max(0, least - first), left);
    if (first == 0) {
      rest = most == 0 ? sequence({})
                       : sequence({item(0), repeated(sequence({comma(), item(0)}), std::max(0, least - 1),
                                                     most == RegexPart::kNoLimit ? most : most - 1)});
      if (least == 0) rest = choice({sequence({}), std::move(rest)});
    }
    for (std::size_t i = known; i-- > 0;) {
      RegexPart next =
          i == 0 ? sequence({item(i), std::move(rest)}) : sequence({comma(), item(i), std::move(rest)});
      if (static_cast<int>(i) >= least) next = choice({sequence({}), std::move(next)});
      rules_.push_back({"items", std::move(next)});
      rest = rule_part(static_cast<int>(rules_.size()) - 1);
    }
    return sequence({bytes_of("["), space(), std::move(rest), space(), bytes_of("]")});
  }

  static const Json* own(const Json* schema, const std::string& keyword) {
    return schema->contains(keyword) ? &schema->at(keyword) : nullptr;
  }
  std::vector<std::string> required_in(const Schemas& all) {
    std::vector<std::string> names;
    std::set<std::string> seen;
    for (const Json* schema : all)
      if (const Json* required = own(schema, "required"))
        for (const Json& name : *required)
          if (seen.insert(name.get<std::string>()).second) names.push_back(name.get<std::string>());
    return names;
  }
  /// The schemas of a member.
  Schemas member(const Schemas& all, const std::string& name) {
    Schemas schemas;
    for (const Json* schema : all) {
      const Json* found = property(schema, name);
      if (found != nullptr)
        schemas.push_back(at(found, paths_.at(schema) + "/properties/" + in_path(name)));
      else if (schema->contains("additionalProperties"))
        schemas.push_back(within(schema, "additionalProperties"));
    }
    return schemas;
  }
  const Json* property(const Json* schema, const std::string& name) {
    if (!schema->contains("properties")) return nullptr;
    const auto [known, is_new] = properties_.try_emplace(schema);
    if (is_new)
      for (const auto& [key, value] : schema->at("properties").items()) known->second[key] = &value;
    const auto found = known->second.find(name);
    return found == known->second.end() ? nullptr : found->second;
  }

  RegexPart object(const Schemas& all) {
    std::vector<std::string> names;
    std::set<std::string> seen;
    for (const Json* schema : all)
      if (const Json* properties = own(schema, "properties"))
        for (const auto& [name, _] : properties->items())
          if (seen.insert(name).second) names.push_back(name);
    const std::vector<std::string> required = required_in(all);
    const std::set<std::string> is_required(required.begin(), required.end());
    for (const std::string& name : required)
      if (seen.insert(name).second) names.push_back(name);

    ObjectMembers members;
    members.comma = comma();
    for (const std::string& name : names) {
      if (name.size() > 1'000) fail(paths_.at(all.front()), "a name has more than 1000 bytes");
      count(20);
      members.members.push_back(
          {sequence({this->name(name), rule_for(member(all, name))}), is_required.contains(name)});
    }
    Schemas others;
    bool may_have_others = true;
    for (const Json* schema : all) {
      if (!schema->contains("additionalProperties")) continue;
      others.push_back(within(schema, "additionalProperties"));
      may_have_others &= *others.back() != false;
    }
    if (may_have_others)
      members.more = sequence({bytes_of("\""), other_name({names.begin(), names.end()}), bytes_of("\":"),
                               space(), rule_for(others)});
    for (const Json* schema : all) {
      if (schema->contains("minProperties") &&
          schema->at("minProperties").get<double>() > static_cast<double>(required.size()))
        fail(schema, "minProperties", "it is not supported above the number of required properties");
      if (schema->contains("maxProperties") &&
          (may_have_others || schema->at("maxProperties").get<double>() < static_cast<double>(names.size())))
        fail(schema, "maxProperties", "it is not supported below the number of properties");
    }
    return sequence({bytes_of("{"), space(), write_(members, rules_), space(), bytes_of("}")});
  }

  /// The characters of a name that is none of these. They have one form each, so no name comes in disguise.
  RegexPart other_name(std::set<std::string> names) {
    std::string key = "other";
    for (const std::string& name : names) key += Json(name).dump();
    return shared(key, [&] {
      const std::vector<std::string> sorted(names.begin(), names.end());
      return other_than(sorted, 0);
    });
  }
  RegexPart name_character() {
    return shared("name character", [] { return any_of_in_json(all_but({{0, 7}, {11, 11}, {14, 31}})); });
  }
  RegexPart other_than(std::span<const std::string> names, std::size_t from) {
    count(100);
    if (names.empty()) return repeated(name_character(), 0, RegexPart::kNoLimit);
    RegexPart part = choice({});
    CodePoints taken{{0, 7}, {11, 11}, {14, 31}};
    std::size_t i = 0;
    if (names[0].size() == from)
      ++i;  // to end here would be this name
    else
      part.parts.push_back(sequence({}));
    for (std::size_t next = 0; i < names.size(); i = next) {
      std::string_view rest = std::string_view(names[i]).substr(from);
      const std::size_t before = rest.size();
      const auto c = take_code_point(rest);
      if (!c) throw UsageError("a name in the schema is no valid UTF-8");
      const std::size_t length = before - rest.size();
      const std::string_view begin = std::string_view(names[i]).substr(0, from + length);
      for (next = i + 1; next < names.size() && names[next].starts_with(begin);) ++next;
      const bool is_control = *c < 0x20 && any_of_in_json({{*c, *c}}).parts[0].parts.size() > 2;
      taken.emplace_back(*c, *c);
      if (is_control) continue;  // other names have no such character
      rules_.push_back({"other", choice({})});
      const auto rule = static_cast<int>(rules_.size()) - 1;
      RegexPart made = other_than(names.subspan(i, next - i), from + length);
      rules_[rule].part = std::move(made);
      part.parts.push_back(sequence({any_of_in_json({{*c, *c}}), rule_part(rule)}));
    }
    part.parts.push_back(
        sequence({any_of_in_json(all_but(taken)), repeated(name_character(), 0, RegexPart::kNoLimit)}));
    return part;
  }

  const Json document_;
  const WriteMembers& write_;
  bool ref_is_alone_ = false;  // before 2019, $ref hides the keywords beside it
  GrammarRules rules_;
  std::map<const Json*, std::string> paths_;
  std::map<Schemas, int> known_;
  std::map<std::string, int> shared_;
  std::vector<std::pair<int, Schemas>> todo_;
  std::vector<const Json*> open_;
  std::set<const Json*> checked_;
  std::map<const Json*, std::map<std::string, const Json*>> properties_;  // by name
  std::size_t made_ = 0;
};

}  // namespace

GrammarRules json_schema_rules(std::string_view schema, const WriteMembers& write) {
  if (schema.size() > kMaxBytes)
    throw UsageError("the schema has {} bytes, but at most {} are read", schema.size(), kMaxBytes);
  try {
    Json document = parse_ordered_json(schema, "the schema", kMaxDepth);
    if (!document.is_object() && !document.is_boolean())
      throw UsageError("the schema must be an object, true or false");
    return Compiler(std::move(document), write).rules();
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    throw UsageError("{}", error.what());
  }
}

GrammarRules read_json_schema(const std::string& file, const WriteMembers& write) {
  return file.empty() ? GrammarRules() : json_schema_rules(read_file_or_pipe(file), write);
}

}  // namespace staircase
