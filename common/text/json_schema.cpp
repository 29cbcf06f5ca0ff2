#include "common/text/json_schema.h"

#include <algorithm>
#include <cmath>
#include <list>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json_file.h"
#include "common/base/misspelling.h"
#include "common/text/code_points.h"
#include "common/text/intersection.h"
#include "common/text/number_ranges.h"
#include "common/text/schema_reader.h"

namespace staircase {

namespace {

using Json = SchemaReader::Json;
using Schemas = SchemaReader::Schemas;
using Kind = RegexPart::Kind;

constexpr std::size_t kMaxBytes = 1'000'000, kMaxDepth = 100, kMaxPatterns = 4;

// RFC 3339, RFC 4122, RFC 2673, RFC 5321 and RFC 3986. Days must exist in their months, and the 29th of
// February in its year.
constexpr const char* kDate =
    "(((000[1-9]|00[1-9]\\d|0[1-9]\\d{2}|[1-9]\\d{3})-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-("
    "0[1-9]|[12]\\d|30)|"
    "02-(0[1-9]|1\\d|2[0-8])))|(\\d{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-"
    "29)";
constexpr const char* kTime =
    "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?([Zz]|[-+]([01]\\d|2[0-3]):[0-5]\\d)";
constexpr const char* kIpv4 =
    "((25[0-5]|2[0-4]\\d|1\\d{2}|[1-9]?\\d)\\.){3}(25[0-5]|2[0-4]\\d|1\\d{2}|[1-9]?\\d)";
// The standard's formats that are not supported.
constexpr const char* kOtherFormats[] = {
    "duration", "hostname",     "idn-email", "idn-hostname",          "iri",           "iri-reference",
    "ipv6",     "json-pointer", "regex",     "relative-json-pointer", "uri-reference", "uri-template"};
constexpr const char* kUuid = "[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}";
constexpr const char* kEmail =
    "([\\w!#$%&'*+/=?\\^`\\{|\\}~-]+(\\.[\\w!#$%&'*+/=?\\^`\\{|\\}~-]+)*|\"([ !#-\\[\\]-~]|\\\\[ -~])*\")@"
    "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*";

/// An absolute URI: appendix A of the RFC. In a host in brackets, h stands for up to four hexadecimal digits.
std::string uri_pattern() {
  const std::string h = "[0-9A-Fa-f]{1,4}", last = "(" + h + ":" + h + "|" + kIpv4 + ")";
  std::string ipv6 = "(" + h + ":){6}" + last + "|::(" + h + ":){5}" + last;
  for (int before = 1; before <= 7; ++before) {  // this many groups may come before ::, and the rest after it
    const std::string front =
        before == 1 ? "(" + h + ")?" : "((" + h + ":){0," + std::to_string(before - 1) + "}" + h + ")?";
    ipv6 += "|" + front + "::";
    if (before <= 4) ipv6 += "(" + h + ":){" + std::to_string(5 - before) + "}" + last;
    if (before == 5) ipv6 += last;
    if (before == 6) ipv6 += h;
  }
  const std::string letters = "A-Za-z0-9._~!$&'()*+,;=", escape = "%[0-9A-Fa-f]{2}";
  const std::string character = "([" + letters + ":@-]|" + escape + ")",
                    text = "([" + letters + ":@/?-]|" + escape + ")*";
  const std::string user = "([" + letters + ":-]|" + escape + ")*",
                    name = "([" + letters + "-]|" + escape + ")*";
  const std::string host = "(\\[(" + ipv6 + "|[vV][0-9A-Fa-f]+\\.[" + letters + ":-]+)\\]|" + name + ")";
  const std::string path = "(/" + character + "*)*";
  return "[A-Za-z][A-Za-z0-9+.-]*:(//(" + user + "@)?" + host + "(:[0-9]*)?" + path + "|/(" + character +
         "+" + path + ")?|" + character + "+" + path + ")?(\\?" + text + ")?(#" + text + ")?";
}

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

/// Writes a grammar for the values that are valid under a schema, with one rule for each set of schemas that
/// must all hold.
class GrammarWriter {
 public:
  GrammarWriter(Json schema, const WriteMembers& write) : reader_(std::move(schema)), write_(write) {}

  GrammarRules rules() {
    rule_for({reader_.root()}, "root");
    for (; !todo_.empty();) {
      const auto [rule, schemas] = todo_.back();
      todo_.pop_back();
      RegexPart part = choice({});
      for (const Schemas& all : reader_.alternatives(schemas)) part.parts.push_back(value(all));
      rules_[rule].part = std::move(part);
    }
    if (!keep_finite(rules_)) throw UsageError("no JSON value is valid under the schema");
    return std::move(rules_);
  }

 private:
  /// Returns a rule for the values that are valid under all of these schemas. Its body is written later.
  RegexPart rule_for(Schemas schemas, const std::string& name = "value") {
    // Their order determines the order of the members, but the same set in another order is the same rule.
    const std::set<const Json*> all(schemas.begin(), schemas.end());
    const auto [known, is_new] = known_.try_emplace(all, static_cast<int>(rules_.size()));
    if (is_new) {
      rules_.push_back({name, choice({})});
      todo_.emplace_back(known->second, std::move(schemas));
    }
    return rule_part(known->second);
  }
  /// Returns a rule for a part that many others use.
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

  // ── Values ──

  RegexPart value(const Schemas& all) {
    RegexPart part = choice({});
    if (const auto values = reader_.values_of(all)) {
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
    const int types = reader_.types_of(all);
    if (types & kNull) part.parts.push_back(bytes_of("null"));
    if (types & kBoolean) part.parts.push_back(choice({bytes_of("true"), bytes_of("false")}));
    if (types & (kWhole | kFraction)) part.parts.push_back(number(all, types));
    if (types & kString) part.parts.push_back(string(all));
    if (types & kArray) part.parts.push_back(array(all));
    if (types & kObject) part.parts.push_back(object(all));
    reader_.count(10);
    return part;
  }

  std::string text_of(const Json& value, const Schemas& all) {
    if (!value.is_number_float()) return value.dump();
    const double number = value.get<double>();
    if (std::abs(number) >= 9e15) reader_.fail(all.front(), "a number above 9e15 in an enum may be rounded");
    return SchemaReader::is_whole(value) ? std::to_string(static_cast<long long>(number)) : value.dump();
  }
  RegexPart literal(const Json& value, const Schemas& all) {
    if (!value.is_structured()) {
      const std::string text = text_of(value, all);
      reader_.count(text.size());
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
  /// Returns a member's name with its colon.
  RegexPart name(const std::string& key) {
    const std::string text = Json(key).dump();
    reader_.count(text.size());
    return sequence({bytes_of(text + ":"), space()});
  }
  /// Describes any of these texts, which are equal up to byte `from`. A byte that several texts share is read
  /// once for all.
  RegexPart one_of_texts(std::span<const std::string> texts, std::size_t from) {
    const std::string &first = texts.front(), &last = texts.back();
    std::size_t to = from;
    while (to < first.size() && to < last.size() && first[to] == last[to]) ++to;
    RegexPart part = bytes_of(first.substr(from, to - from));
    reader_.count(to - from + 2);
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

  RegexPart number(const Schemas& all, int types) {
    const SchemaReader::Bounds bounds = reader_.bounds_of(all);
    const bool may_have_fraction = (types & kFraction) != 0, may_be_whole = (types & kWhole) != 0;
    if (!bounds.least && !bounds.most) {
      return !may_be_whole       ? shared("fraction", any_fraction)
             : may_have_fraction ? shared("number", any_number)
                                 : shared("integer", any_integer);
    }
    constexpr double largest = 1e15;
    for (const auto& [limit, by, keyword] : {std::tuple(bounds.least, bounds.least_by, "minimum"),
                                             std::tuple(bounds.most, bounds.most_by, "maximum")}) {
      if (limit && std::abs(*limit) > largest)
        reader_.fail(by, keyword, "bounds beyond 1e15 are not supported");
      if (limit && may_have_fraction && fmt::format("{}", *limit).find('e') != std::string::npos)
        reader_.fail(by, keyword, "a bound so close to zero is not supported");
    }
    reader_.count(500);
    if (may_have_fraction) {
      std::vector<RegexPart> ranges;
      if (bounds.least)
        ranges.push_back(numbers_from(fmt::format("{}", *bounds.least), bounds.excludes_least));
      if (bounds.most) ranges.push_back(numbers_to(fmt::format("{}", *bounds.most), bounds.excludes_most));
      if (!may_be_whole) ranges.push_back(any_fraction());
      if (ranges.size() == 1) return std::move(ranges[0]);
      return together(ranges, {}, bounds.least ? bounds.least_by : bounds.most_by,
                      bounds.least ? "minimum" : "maximum")
          .value_or(choice({}));
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

  static RegexPart repeated(RegexPart part, int least, int most) {
    RegexPart all{Kind::kRepeat, {std::move(part)}};
    all.least = least, all.most = most;
    return most == 0 ? sequence({}) : all;
  }

  RegexPart character() { return shared("character", any_character); }
  static RegexPart any_character() {
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
                   sequence({bytes_of("\\u"), set("dD"), set("89abAB"), hex, hex, bytes_of("\\u"), set("dD"),
                             set("cdefCDEF"), hex, hex})});
  }
  RegexPart in_quotes(RegexPart part) { return sequence({bytes_of("\""), std::move(part), bytes_of("\"")}); }

  RegexPart string(const Schemas& all) {
    static const std::map<std::string, std::string> formats{
        {"date", kDate},       {"time", kTime}, {"date-time", std::string(kDate) + "[Tt]" + kTime},
        {"uuid", kUuid},       {"ipv4", kIpv4}, {"email", kEmail},
        {"uri", uri_pattern()}};
    std::map<std::string, std::pair<const Json*, std::string>> patterns;  // with their schema and keyword
    for (const Json* schema : all) {
      if (schema->contains("pattern"))
        patterns[schema->at("pattern").get<std::string>()] = {schema, "pattern"};
      if (!schema->contains("format")) continue;
      const auto format = schema->at("format").get<std::string>();
      const auto known = formats.find(format);
      if (known == formats.end()) {
        // Other names state nothing about the text (2020-12, validation, 7.2.3).
        const auto is_meant = [&](const std::string& name) {
          return wrong_letters(format, name).has_value();
        };
        const bool is_other = std::ranges::count(kOtherFormats, format) > 0;  // ipv6 is no misspelt ipv4
        for (const auto& [name, _] : formats)
          if (!is_other && is_meant(name))
            reader_.fail(schema, "format", fmt::format("there is no such format; did you mean {}?", name));
        for (const char* name : kOtherFormats)
          if (is_meant(name))
            reader_.fail(schema, "format",
                         "the supported formats are date, time, date-time, uuid, ipv4, email and uri");
        continue;
      }
      patterns["^(" + known->second + ")$"] = {schema, "format"};
    }
    const int least = reader_.counted(all, "minLength", true).value_or(0);
    const int most = reader_.counted(all, "maxLength", false).value_or(RegexPart::kNoLimit);
    if (most != RegexPart::kNoLimit && most < least) return choice({});
    // An excluded string must not appear in another spelling, so each character then has only one form.
    std::map<std::string, const Json*> excluded_patterns;
    std::set<std::string> excluded;
    for (const Json* schema : all) {
      const Json* const none = SchemaReader::excluded(schema);
      if (none != nullptr && none->contains("pattern"))
        excluded_patterns[none->at("pattern").get<std::string>()] = schema;
      if (none != nullptr && none->contains("enum"))
        for (const Json& text : none->at("enum")) excluded.insert(text.get<std::string>());
    }
    const bool has_one_form = !excluded.empty() || !excluded_patterns.empty();
    if (patterns.empty() && !has_one_form) return in_quotes(repeated(character(), least, most));
    const bool is_bounded = least > 0 || most != RegexPart::kNoLimit || has_one_form;
    std::string name = is_bounded ? fmt::format("{} to {} ", least, most) : "";
    for (const auto& [pattern, _] : patterns) name += "pattern " + Json(pattern).dump();
    for (const auto& [pattern, _] : excluded_patterns) name += "not pattern " + Json(pattern).dump();
    for (const std::string& text : excluded) name += "not " + Json(text).dump();
    reader_.count(5'000);
    return shared(name, [&] {
      const RegexPart any = has_one_form ? any_of_in_json(all_but({})) : any_character();
      const bool is_alone = patterns.size() == 1 && !is_bounded;
      const auto read = [&](const std::string& pattern, const Json* by, const std::string& keyword) {
        try {
          return parse_json_pattern(pattern, is_alone ? character() : any);
        } catch (const UsageError& error) {
          reader_.fail(by, keyword, error.what());
        }
      };
      std::vector<RegexPart> wanted, unwanted;
      for (const auto& [pattern, place] : patterns)
        wanted.push_back(read(pattern, place.first, place.second));
      for (const auto& [pattern, by] : excluded_patterns)
        unwanted.push_back(read(pattern, by, "not/pattern"));
      for (const std::string& text : excluded) unwanted.push_back(in_json_string(text));
      if (is_bounded) wanted.push_back(repeated(any, least, most));
      if (is_alone) return in_quotes(std::move(wanted[0]));
      const auto& [by, keyword] = patterns.empty() ? std::pair<const Json*, std::string>(all.front(), "not")
                                                   : patterns.begin()->second;
      if (auto all_hold = together(wanted, unwanted, by, keyword)) return in_quotes(std::move(*all_hold));
      return choice({});
    });
  }
  /// The string as JSON writes it, without its quotation marks.
  static RegexPart in_json_string(const std::string& string) {
    const std::string text = Json(string).dump();
    return bytes_of(std::string_view(text).substr(1, text.size() - 2));
  }

  RegexPart array(const Schemas& all) {
    const int least = reader_.counted(all, "minItems", true).value_or(0);
    const int most = reader_.counted(all, "maxItems", false).value_or(RegexPart::kNoLimit);
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
      prefixes.push_back(*prefix(schema) == '\0' ? Schemas() : reader_.listed(schema, prefix(schema)));
    const auto item = [&](std::size_t i) {
      Schemas schemas;
      for (std::size_t k = 0; k < all.size(); ++k) {
        const char* others = prefix(all[k]) == std::string_view("items") ? "additionalItems" : "items";
        if (i < prefixes[k].size())
          schemas.push_back(prefixes[k][i]);
        else if (all[k]->contains(others))
          schemas.push_back(reader_.within(all[k], others));
      }
      return rule_for(schemas);
    };
    const int first = static_cast<int>(known);
    if (most != RegexPart::kNoLimit) known = std::min<std::size_t>(known, most);
    reader_.count(10 * known);
    const int left = most == RegexPart::kNoLimit ? most : std::max(0, most - first);
    // Built from the last item to the first: `rest` is what may follow the items so far.
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

  /// Merges the names of all schemas and keeps the order of each, if no two contradict each other: [a, c] and
  /// [a, b, c, d] become a, b, c, d. If two schemas have no name in common, the names of the first come
  /// first.
  static std::list<std::string> named_in(const Schemas& all, const std::vector<std::string>& required) {
    std::list<std::string> names;
    std::map<std::string, std::list<std::string>::iterator> place_of;
    const auto add = [&](const std::string& name, std::list<std::string>::iterator before) {
      const auto [known, is_new] = place_of.try_emplace(name);
      if (is_new) known->second = names.insert(before, name);
      return known->second;
    };
    for (const Json* schema : all) {
      if (!schema->contains("properties")) continue;
      std::vector<std::string> own;
      for (const auto& [name, _] : schema->at("properties").items()) own.push_back(name);
      auto next = names.end();
      for (auto name = own.rbegin(); name != own.rend(); ++name) next = add(*name, next);
    }
    for (const std::string& name : required) add(name, names.end());
    return names;
  }

  RegexPart object(const Schemas& all) {
    const std::vector<std::string> required = reader_.required_in(all);
    const std::list<std::string> names = named_in(all, required);
    const std::set<std::string> is_required(required.begin(), required.end());

    ObjectMembers members;
    members.comma = comma();
    for (const std::string& name : names) {
      if (name.size() > 1'000) reader_.fail(all.front(), "a name has more than 1000 bytes");
      reader_.count(20);
      members.members.push_back(
          {sequence({this->name(name), rule_for(reader_.member(all, name))}), is_required.contains(name)});
    }
    std::vector<RegexPart> more;
    for (auto& [name, schemas] : other_names(all, {names.begin(), names.end()}))
      more.push_back(sequence(
          {bytes_of("\""), std::move(name), bytes_of("\":"), space(), rule_for(std::move(schemas))}));
    const bool may_have_others = !more.empty();
    if (may_have_others) members.more = choice(std::move(more));
    const int least = reader_.counted(all, "minProperties", true).value_or(0);
    const int most = reader_.counted(all, "maxProperties", false).value_or(RegexPart::kNoLimit);
    const bool counts = least > std::ssize(required) ||
                        (most != RegexPart::kNoLimit && (may_have_others || most < std::ssize(names)));
    return sequence({bytes_of("{"), space(),
                     counts ? counted_members(members, least, most) : write_(members, rules_), space(),
                     bytes_of("}")});
  }

  /// Describes at least `least` and at most `most` of the members, with a rule for each place in their list
  /// and each number of members before it.
  RegexPart counted_members(const ObjectMembers& object, int least, int most) {
    const bool has_limit = most != RegexPart::kNoLimit;
    const int last = static_cast<int>(object.members.size());
    // From this number on, further members before a place make no difference.
    const int enough = has_limit ? most : std::max(least, 1);
    const auto new_rule = [&] {
      reader_.count(10);
      rules_.push_back({"members", choice({})});
      return rule_part(static_cast<int>(rules_.size()) - 1);
    };
    const auto with = [&](int before, const RegexPart& member, const RegexPart& rest) {
      return before == 0 ? sequence({member, rest}) : sequence({object.comma, member, rest});
    };
    std::vector<RegexPart> rest;  // by the number of members before it
    if (object.more) rules_.push_back({"other member", *object.more});
    const RegexPart other = rule_part(static_cast<int>(rules_.size()) - 1);
    const int most_before = object.more ? enough : std::min(enough, last);
    for (int before = 0; before <= most_before; ++before) rest.push_back(new_rule());
    for (int before = 0; before <= most_before; ++before) {
      RegexPart& part = rules_[rest[before].rule].part;
      if (before >= least) part.parts.push_back(sequence({}));
      if (object.more && (!has_limit || before < most))
        part.parts.push_back(with(before, other, rest[std::min(before + 1, enough)]));
    }
    for (int place = last; place-- > 0;) {
      const auto& [written, is_required] = object.members[place];
      rules_.push_back({"member", written});
      const RegexPart member = rule_part(static_cast<int>(rules_.size()) - 1);
      std::vector<RegexPart> from;
      for (int before = 0; before <= std::min(enough, place); ++before) {
        from.push_back(new_rule());
        RegexPart& part = rules_[from.back().rule].part;
        if (!has_limit || before < most)
          part.parts.push_back(with(before, member, rest[std::min(before + 1, enough)]));
        if (!is_required) part.parts.push_back(rest[before]);
      }
      rest = std::move(from);
    }
    return rest[0];
  }

  /// Returns the names other than these and the schemas of their members, for each set of patterns that may
  /// match a name.
  std::vector<std::pair<RegexPart, Schemas>> other_names(const Schemas& all,
                                                         const std::set<std::string>& names) {
    const std::set<std::string> patterns = SchemaReader::patterns_in(all);
    const std::vector<std::string> list(patterns.begin(), patterns.end());
    if (list.size() > kMaxPatterns)
      reader_.fail(all.front(), "more than 4 patterns of names are not supported");
    std::vector<std::pair<RegexPart, Schemas>> found;
    for (unsigned set = 0; set < 1u << list.size(); ++set) {
      std::set<std::string> matching;
      for (std::size_t i = 0; i < list.size(); ++i)
        if (set >> i & 1) matching.insert(list[i]);
      Schemas schemas = reader_.matched(all, matching);
      if (std::ranges::any_of(schemas, [](const Json* schema) { return *schema == false; })) continue;
      if (list.empty())
        found.emplace_back(other_name(names), std::move(schemas));
      else if (auto name = name_that_matches(all, list, matching, names))
        found.emplace_back(std::move(*name), std::move(schemas));
    }
    return found;
  }
  /// Describes a name that is not among `names` and that matches exactly the patterns in `matching`.
  std::optional<RegexPart> name_that_matches(const Schemas& all, const std::vector<std::string>& patterns,
                                             const std::set<std::string>& matching,
                                             const std::set<std::string>& names) {
    std::vector<RegexPart> wanted{repeated(any_of_in_json(kNameCharacters), 0, RegexPart::kNoLimit)},
        unwanted;
    for (const std::string& pattern : patterns)
      (matching.contains(pattern) ? wanted : unwanted).push_back(reader_.name_pattern(all, pattern));
    for (const std::string& name : names) unwanted.push_back(in_json_string(name));
    return together(wanted, unwanted, all.front(), "patternProperties");
  }
  std::optional<RegexPart> together(const std::vector<RegexPart>& wanted,
                                    const std::vector<RegexPart>& unwanted, const Json* schema,
                                    const std::string& keyword) {
    const std::size_t before = rules_.size();
    try {
      auto found = intersection(wanted, unwanted, rules_);
      reader_.count(10 * (rules_.size() - before));
      return found;
    } catch (const UsageError&) {
      throw;
    } catch (const Error& error) {
      reader_.fail(schema, keyword, error.what());
    }
  }

  /// Describes the characters of a name that is not among `names`.
  RegexPart other_name(std::set<std::string> names) {
    std::string key = "other";
    for (const std::string& name : names) key += Json(name).dump();
    return shared(key, [&] {
      const std::vector<std::string> sorted(names.begin(), names.end());
      return other_than(sorted, 0);
    });
  }
  RegexPart name_character() {
    return shared("name character", [] { return any_of_in_json(kNameCharacters); });
  }
  RegexPart other_than(std::span<const std::string> names, std::size_t from) {
    reader_.count(100);
    if (names.empty()) return repeated(name_character(), 0, RegexPart::kNoLimit);
    RegexPart part = choice({});
    CodePoints taken{{0, 7}, {11, 11}, {14, 31}};
    std::size_t i = 0;
    if (names[0].size() == from)
      ++i;  // ending here would be exactly this name
    else
      part.parts.push_back(sequence({}));
    for (std::size_t next = 0; i < names.size(); i = next) {
      std::string_view rest = std::string_view(names[i]).substr(from);
      const std::size_t before = rest.size();
      const auto c = take_code_point(rest);
      if (!c) throw UsageError("a name in the schema is not valid UTF-8");
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
    const auto go_on_with = [&](RegexPart character) {
      part.parts.push_back(
          sequence({std::move(character), repeated(name_character(), 0, RegexPart::kNoLimit)}));
    };
    // Characters beyond ASCII have many parts, but few names need them, so all other places share one rule
    // for them.
    if (std::ranges::all_of(taken, [](const auto& range) { return range.second < 128; })) {
      go_on_with(shared("beyond ASCII", [] { return any_of_in_json(all_but({{0, 127}})); }));
      taken.emplace_back(128, 0x10FFFF);
    }
    go_on_with(any_of_in_json(all_but(taken)));
    return part;
  }

  SchemaReader reader_;
  const WriteMembers& write_;
  GrammarRules rules_;
  std::map<std::set<const Json*>, int> known_;
  std::map<std::string, int> shared_;
  std::vector<std::pair<int, Schemas>> todo_;
};

}  // namespace

GrammarRules json_schema_rules(std::string_view schema, const WriteMembers& write) {
  if (schema.size() > kMaxBytes)
    throw UsageError("the schema has {} bytes, but at most {} are read", schema.size(), kMaxBytes);
  try {
    Json document = parse_ordered_json(schema, "the schema", kMaxDepth);
    if (!document.is_object() && !document.is_boolean())
      throw UsageError("the schema must be an object, true or false");
    return GrammarWriter(std::move(document), write).rules();
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
