#include "common/text/jinja/builtins.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "common/base/error.h"
#include "common/base/quoted.h"

namespace staircase::jinja {

namespace {

using Values = std::vector<Value>;
using Kind = Sequence::Kind;

std::string shown(const std::string& name) {
  return quoted(name, 40);
}

// Texts. Each keeps the origin of every byte.

const Text& text_of(const Value& value, const char* what) {
  if (!value.text()) throw Fault(fmt::format("uses {} with {} instead of a text", what, value.kind()));
  return *value.text();
}

std::int64_t integer_of(const Value& value, const char* what) {
  if (!value.integer()) throw Fault(fmt::format("uses {} with {} instead of an integer", what, value.kind()));
  return *value.integer();
}

enum Side { kLeft = 1, kRight = 2, kBoth = 3 };

/// Without white space at its ends, or without the characters of `set`.
Value stripped(const Text& text, const Value& set, int sides) {
  const bool blanks = set.is_undefined() || set.is_none();
  const std::string_view all = text.bytes;
  const std::string_view characters = blanks ? std::string_view() : text_of(set, "strip").bytes;
  std::size_t begin = 0, end = text.size();
  if (sides & kLeft) begin = blanks ? spaces_in_front(all) : span_in_front(all, characters);
  const std::string_view rest = all.substr(begin);
  if (sides & kRight) end -= blanks ? spaces_at_back(rest) : span_at_back(rest, characters);
  return text.part(begin, end);
}

/// The parts of `text` between separators, at most `most` + 1 if that is not negative.
std::vector<Text> split_at(const Text& text, const std::string& separator, std::int64_t most,
                           Budget& budget) {
  if (separator.empty()) throw Fault("splits a text at nothing");
  budget.spend_product(text.size(), separator.size());
  budget.spend_bytes(text.size());
  std::vector<Text> parts;
  std::size_t begin = 0;
  while (most < 0 || static_cast<std::int64_t>(parts.size()) < most) {
    const std::size_t end = text.bytes.find(separator, begin);
    if (end == std::string::npos) break;
    budget.spend_bytes(sizeof(Text));
    parts.push_back(text.part(begin, end));
    begin = end + separator.size();
  }
  parts.push_back(text.part(begin, text.size()));
  return parts;
}

std::vector<Text> split_at_spaces(const Text& text, std::int64_t most, Budget& budget) {
  budget.spend_bytes(text.size());
  std::vector<Text> parts;
  std::size_t at = 0;
  const auto skip = [&] { at += spaces_in_front(std::string_view(text.bytes).substr(at)); };
  for (skip(); at < text.size(); skip()) {
    if (most >= 0 && static_cast<std::int64_t>(parts.size()) == most) {
      parts.push_back(text.part(at, text.size()));
      break;
    }
    const std::size_t begin = at;
    while (at < text.size() &&
           spaces_in_front(first_character(std::string_view(text.bytes).substr(at))) == 0) {
      at += first_character(std::string_view(text.bytes).substr(at)).size();
    }
    budget.spend_bytes(sizeof(Text));
    parts.push_back(text.part(begin, at));
  }
  return parts;
}

void append(Text& text, const Text& more, Budget& budget) {
  budget.spend_bytes(more.size());
  text.append(more);
}

Text joined(const std::vector<Text>& parts, const Text& between, Budget& budget) {
  Text all;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) append(all, between, budget);
    append(all, parts[i], budget);
  }
  return all;
}

Text replaced(const Text& text, const Text& from, const Text& to, std::int64_t most, Budget& budget) {
  if (!from.bytes.empty()) return joined(split_at(text, from.bytes, most, budget), to, budget);
  Text all;  // as in Python, between all characters
  const std::vector<std::size_t> starts = text.characters();
  for (std::size_t i = 0; i < starts.size(); ++i) {
    if (most < 0 || static_cast<std::int64_t>(i) < most) append(all, to, budget);
    const std::size_t end = i + 1 < starts.size() ? starts[i + 1] : starts[i];
    append(all, text.part(starts[i], end), budget);
  }
  return all;
}

/// As Python's str.splitlines(), which knows more ends of lines than "\n".
std::vector<Text> lines_of(const Text& text, bool keep_ends, Budget& budget) {
  static const std::set<char32_t> ends = {'\n', '\r', '\v', '\f', 0x1C, 0x1D, 0x1E, 0x85, 0x2028, 0x2029};
  budget.spend_bytes(text.size());
  std::vector<Text> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view rest = std::string_view(text.bytes).substr(at), character = first_character(rest);
    const std::size_t end = at;
    at += rest.starts_with("\r\n") ? 2 : character.size();
    if (!ends.contains(code_point(character)) && at < text.size()) continue;
    budget.spend_bytes(sizeof(Text));
    lines.push_back(text.part(begin, keep_ends || !ends.contains(code_point(character)) ? at : end));
    begin = at;
  }
  return lines;
}

Text indented(const Text& text, const Text& indent, bool first, bool blank, Budget& budget) {
  Text ended = text;
  append(ended, Text::of_template("\n"), budget);  // so that an empty text has a line
  std::vector<Text> lines = lines_of(ended, false, budget);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i == 0 ? !first : !blank && lines[i].size() == 0) continue;
    Text line = indent;
    append(line, lines[i], budget);
    lines[i] = std::move(line);
  }
  return joined(lines, Text::of_template("\n"), budget);
}

/// "{}" and "{name}" of `text` filled in, as by Python's str.format().
Value formatted(const Text& text, const Arguments& arguments, Budget& budget) {
  Text all;
  std::size_t next = 0;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text.bytes[at];
    const bool twice = at + 1 < text.size() && text.bytes[at + 1] == c;
    const std::size_t end = c == '{' && !twice ? text.bytes.find('}', at) : at;
    if (end == std::string::npos || (c == '}' && !twice)) throw Fault("formats a text with a single brace");
    if (end == at) {
      append(all, text.part(at, at + 1), budget);
      at += (c == '{' || c == '}') ? 2 : 1;
      continue;
    }
    const std::string field = text.bytes.substr(at + 1, end - at - 1);
    const auto named = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& argument) { return argument.first == field; });
    if (named != arguments.named.end()) {
      append(all, to_text(named->second, budget), budget);
    } else if (field.empty() && next < arguments.values.size()) {
      append(all, to_text(arguments.values[next++], budget), budget);
    } else {
      throw Fault(
          fmt::format("formats a text with {}, for which nothing is given", shown("{" + field + "}")));
    }
    at = end + 1;
  }
  return all;
}

/// Each word with a capital first letter, like Jinja's filter: a word ends at white space and -([{<.
Text titled(const Text& text) {
  std::string title;
  for (std::string_view rest = text.bytes; !rest.empty();) {
    const std::string_view first = first_character(rest);
    std::size_t end = first.size();
    const auto is_between = [](std::string_view character) {
      return spaces_in_front(character) > 0 ||
             std::string_view("-([{<").find(character) != std::string_view::npos;
    };
    while (!is_between(first) && end < rest.size() && !is_between(first_character(rest.substr(end))))
      end += first_character(rest.substr(end)).size();
    title += to_upper(first) + to_lower(rest.substr(first.size(), end - first.size()));
    rest.remove_prefix(end);
  }
  return Text::mixed(title, {&text});
}

Text escaped(const Text& text, Budget& budget) {
  if (text.is_html) return text;
  Text all;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes[i];
    const char* name = c == '&'   ? "&amp;"
                       : c == '<' ? "&lt;"
                       : c == '>' ? "&gt;"
                       : c == '"' ? "&#34;"
                                  : "&#39;";
    const bool special = std::string_view("&<>\"'").find(c) != std::string_view::npos;
    append(all, special ? Text::of_data(name) : text.part(i, i + 1), budget);
  }
  all.is_html = true;
  return all;
}

Value list_of(std::vector<Text> texts, Budget& budget) {
  return make_list(Values(std::make_move_iterator(texts.begin()), std::make_move_iterator(texts.end())),
                   budget);
}

std::vector<Text> texts_of(const Values& values, Budget& budget) {
  std::vector<Text> texts;
  for (const Value& value : values) {
    texts.push_back(to_text(value, budget));
    budget.spend_bytes(texts.back().size());
  }
  return texts;
}

std::int64_t count_of(const Value& value, const char* what) {
  return value.is_undefined() || value.is_none() ? -1 : integer_of(value, what);
}

bool has_at_end(const Text& text, const Value& ends, bool at_front) {
  if (ends.sequence() && ends.sequence()->kind == Kind::kTuple) {
    const Values& all = ends.sequence()->items;
    return std::any_of(all.begin(), all.end(),
                       [&](const Value& end) { return has_at_end(text, end, at_front); });
  }
  const std::string& end = text_of(ends, at_front ? "startswith" : "endswith").bytes;
  return at_front ? text.bytes.starts_with(end) : text.bytes.ends_with(end);
}

}  // namespace

Text repeated(const Text& text, std::int64_t times, Budget& budget) {
  constexpr std::int64_t kMany = std::int64_t{1} << 32;  // so no product wraps
  times = text.size() > 0 ? std::clamp<std::int64_t>(times, 0, kMany) : 0;
  budget.spend_bytes(text.size() * static_cast<std::size_t>(times));
  Text all;
  for (std::int64_t i = 0; i < times; ++i) all.append(text);
  return all;
}

std::vector<Value> bind(const std::vector<std::string>& parameters, Arguments arguments,
                        const std::string& callee) {
  if (arguments.values.size() > parameters.size()) {
    throw Fault(fmt::format("gives {} {} arguments, but it takes {}", shown(callee), arguments.values.size(),
                            parameters.size()));
  }
  Values bound = std::move(arguments.values);
  const std::size_t given = bound.size();
  std::vector<bool> has(parameters.size());
  std::fill_n(has.begin(), given, true);
  bound.resize(parameters.size());
  const auto bare = [](std::string_view parameter) {
    return parameter.substr(parameter.starts_with('?') ? 1 : 0);
  };
  for (auto& [name, value] : arguments.named) {
    std::size_t i = 0;
    while (i < parameters.size() && bare(parameters[i]) != name) ++i;
    if (i == parameters.size())
      throw Fault(
          fmt::format("gives {} the argument {}, which it does not take", shown(callee), shown(name)));
    if (has[i]) throw Fault(fmt::format("gives {} the argument {} twice", shown(callee), shown(name)));
    bound[i] = std::move(value);
    has[i] = true;
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!has[i] && !parameters[i].starts_with('?')) {
      throw Fault(fmt::format("calls {} without its argument {}", shown(callee), shown(parameters[i])));
    }
  }
  return bound;
}

namespace {

// Lists.

/// The value that "a.b" or 1 leads to from `value`.
Value at_path(Value value, const Value& path, Budget& budget) {
  if (path.is_undefined() || path.is_none()) return value;
  if (!path.text()) return item(value, path, budget);
  for (const Text& part : split_at(*path.text(), ".", -1, budget)) {
    std::int64_t number = 0;
    const char* const end = part.bytes.data() + part.size();
    const bool is_number = part.size() > 0 &&
                           part.bytes.find_first_not_of("0123456789") == std::string::npos &&
                           std::from_chars(part.bytes.data(), end, number).ptr == end;
    value = item(value, is_number ? Value(number) : Value(part), budget);
  }
  return value;
}

/// The key to compare, without regard to case unless that is wanted.
Value sort_key(const Value& value, const Value& path, bool case_sensitive, Budget& budget) {
  const Value key = at_path(value, path, budget);
  if (!key.text() || case_sensitive) return key;
  budget.spend_bytes(key.text()->size());
  return Text::mixed(to_lower(key.text()->bytes), {key.text()});
}

Values sorted(Values values, const Value& path, bool case_sensitive, bool reverse, Budget& budget) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& value : values) keyed.emplace_back(sort_key(value, path, case_sensitive, budget), value);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(b.first, a.first, budget) : less(a.first, b.first, budget);
  });
  for (std::size_t i = 0; i < keyed.size(); ++i) values[i] = std::move(keyed[i].second);
  return values;
}

Values unique(const Values& values, const Value& path, bool case_sensitive, Budget& budget) {
  Values kept, keys;
  for (const Value& value : values) {
    Value key = sort_key(value, path, case_sensitive, budget);
    require_hashable(key);
    if (std::any_of(keys.begin(), keys.end(), [&](const Value& seen) { return equal(seen, key, budget); }))
      continue;
    kept.push_back(value);
    keys.push_back(std::move(key));
  }
  return kept;
}

Value pairs_of(const Dict& dict, Kind kind, Budget& budget) {
  Values pairs;
  for (const auto& [key, value] : dict.items) pairs.push_back(make_list({key, value}, budget, Kind::kTuple));
  return make_list(std::move(pairs), budget, kind);
}

const Dict& dict_of(const Value& value, const char* what) {
  if (!value.dict()) throw Fault(fmt::format("uses {} with {} instead of a dict", what, value.kind()));
  return *value.dict();
}

/// `map`: another filter, or an attribute, of each.
Value mapped(const Values& values, Arguments arguments, Budget& budget) {
  Values results;
  if (arguments.values.empty()) {
    const Values given = bind({"attribute", "?default"}, std::move(arguments), "map");
    for (const Value& value : values) {
      Value result = at_path(value, given[0], budget);
      results.push_back(result.is_undefined() ? given[1] : std::move(result));
    }
    return make_list(std::move(results), budget, Kind::kIterator);
  }
  const std::string name = text_of(arguments.values.front(), "map").bytes;
  arguments.values.erase(arguments.values.begin());
  for (const Value& value : values) results.push_back(apply_filter(name, value, arguments, budget));
  return make_list(std::move(results), budget, Kind::kIterator);
}

/// `select` and similar filters: the elements whose test, perhaps of an attribute, is `wanted`.
Value selected(const Values& values, const std::string& filter, Values arguments, Budget& budget) {
  const bool wanted = filter.starts_with("select");
  Value path;
  if (filter.ends_with("attr")) {
    if (arguments.empty()) throw Fault(fmt::format("uses {} without the name of an attribute", filter));
    path = arguments.front();
    arguments.erase(arguments.begin());
  }
  std::optional<std::string> test;
  if (!arguments.empty()) {
    test = text_of(arguments.front(), filter.c_str()).bytes;
    arguments.erase(arguments.begin());
  }
  Values kept;
  for (const Value& value : values) {
    const Value tested = at_path(value, path, budget);
    if ((test ? apply_test(*test, tested, arguments, budget) : is_true(tested)) == wanted)
      kept.push_back(value);
  }
  return make_list(std::move(kept), budget, Kind::kIterator);
}

// Numbers.

void require_defined(const Value& value, const std::string& use) {
  if (const auto* undefined = value.as<Undefined>()) {
    throw Fault(fmt::format("{} of {}, which is undefined", use, shown(undefined->what)));
  }
}

Value integers(const std::string& sign, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool too_large = false;
  if (sign == "+") {
    too_large = __builtin_add_overflow(a, b, &result);
  } else if (sign == "-") {
    too_large = __builtin_sub_overflow(a, b, &result);
  } else if (sign == "*") {
    too_large = __builtin_mul_overflow(a, b, &result);
  } else {
    if (b == 0) throw Fault("divides by zero");
    if (sign == "/") {
      constexpr std::int64_t kExact = std::int64_t{1} << 53;
      if (a < -kExact || a > kExact || b < -kExact || b > kExact) throw Fault("divides too large an integer");
      return static_cast<double>(a) / static_cast<double>(b);
    }
    if (a == INT64_MIN && b == -1) throw Fault("makes an integer that is too large");
    const bool down = a % b != 0 && (a < 0) != (b < 0);  // Python rounds down, C++ to zero
    result = sign == "//" ? a / b - down : a % b + (down ? b : 0);
  }
  if (too_large) throw Fault("makes an integer that is too large");
  return result;
}

Value absolute(const Value& value) {
  if (!value.is_number()) throw Fault(fmt::format("uses abs with {} instead of a number", value.kind()));
  if (!value.integer()) return std::abs(*value.real());
  return *value.integer() < 0 ? integers("-", 0, *value.integer()) : Value(*value.integer());
}

/// The text of a number, without white space and a "+". Python also reads digits of other scripts and
/// "1_000".
std::string digits_of(const Text& text) {
  const Value bare = stripped(text, {}, kBoth);
  std::string digits = bare.text()->bytes;
  const auto other = [](char c) { return c == '_' || static_cast<unsigned char>(c) >= 0x80; };
  if (std::any_of(digits.begin(), digits.end(), other))
    throw Fault(fmt::format("reads a number from {}, which is not possible here", shown(digits)));
  if (digits.starts_with('+') && !digits.starts_with("+-")) digits.erase(0, 1);
  return digits;
}

Value to_integer(const Value& value, const Value& otherwise) {
  require_defined(value, "makes an integer");
  if (value.integer()) return *value.integer();
  double number = NAN;
  if (const Text* text = value.text()) {
    const std::string digits = digits_of(*text);
    std::int64_t whole = 0;
    const char* const end = digits.data() + digits.size();
    if (const auto [at, fault] = std::from_chars(digits.data(), end, whole); at == end && !digits.empty()) {
      if (fault == std::errc()) return whole;
      throw Fault(fmt::format("makes an integer of {}, which is too large", shown(digits)));
    }
    number = decimal(digits).value_or(NAN);
  } else {
    number = value.real().value_or(NAN);
  }
  if (std::isfinite(number) && std::abs(number) >= 0x1p63)
    throw Fault(fmt::format("makes an integer of {}, which is too large", number));
  if (std::isfinite(number)) return static_cast<std::int64_t>(number);
  return otherwise.is_undefined() ? Value(std::int64_t{0}) : otherwise;
}

Value to_float(const Value& value, const Value& otherwise) {
  require_defined(value, "makes a number");
  if (value.real()) return *value.real();
  if (const Text* text = value.text()) {
    const std::string digits = digits_of(*text);
    if (const auto number = decimal(digits)) return *number;
    if (!digits.empty() && digits.find_first_not_of("0123456789.eE+-") == std::string::npos &&
        digits.find_first_of("0123456789") != std::string::npos)
      throw Fault(fmt::format("makes a number of {}, which is not possible here", shown(digits)));
  }
  return otherwise.is_undefined() ? Value(0.0) : otherwise;
}

/// tojson(ensure_ascii, indent, separators, sort_keys), as transformers defines it.
Value json_of(const Value& value, const Values& given, Budget& budget) {
  JsonStyle style;
  style.ensure_ascii = is_true(given[0]);
  style.sort_keys = is_true(given[3]);
  if (given[1].text()) {
    style.indent = given[1].text()->bytes;
  } else if (!given[1].is_undefined() && !given[1].is_none()) {
    style.indent = repeated(Text::of_template(" "), integer_of(given[1], "tojson"), budget).bytes;
  }
  style.comma = style.indent ? "," : ", ";
  style.colon = ": ";
  if (const Sequence* separators = given[2].sequence()) {
    if (separators->items.size() != 2) throw Fault("uses tojson with separators that are not two");
    style.comma = text_of(separators->items[0], "tojson").bytes;
    style.colon = text_of(separators->items[1], "tojson").bytes;
  }
  return to_json(value, style, budget);
}

// Methods and filters by name.

using Parameters = std::map<std::string, std::vector<std::string>>;

const Parameters kFilters = {
    {"abs", {}},
    {"capitalize", {}},
    {"default", {"?default_value", "?boolean"}},
    {"dictsort", {"?case_sensitive", "?by", "?reverse"}},
    {"escape", {}},
    {"first", {}},
    {"float", {"?default"}},
    {"indent", {"?width", "?first", "?blank"}},
    {"int", {"?default"}},
    {"items", {}},
    {"join", {"?d", "?attribute"}},
    {"last", {}},
    {"length", {}},
    {"list", {}},
    {"lower", {}},
    {"max", {"?case_sensitive", "?attribute"}},
    {"min", {"?case_sensitive", "?attribute"}},
    {"replace", {"old", "new", "?count"}},
    {"reverse", {}},
    {"safe", {}},
    {"sort", {"?reverse", "?case_sensitive", "?attribute"}},
    {"string", {}},
    {"sum", {"?attribute", "?start"}},
    {"title", {}},
    {"tojson", {"?ensure_ascii", "?indent", "?separators", "?sort_keys"}},
    {"trim", {"?chars"}},
    {"unique", {"?case_sensitive", "?attribute"}},
    {"upper", {}},
};

const Parameters kTextMethods = {
    {"capitalize", {}},
    {"count", {"sub"}},
    {"endswith", {"suffix"}},
    {"join", {"iterable"}},
    {"lower", {}},
    {"lstrip", {"?chars"}},
    {"replace", {"old", "new", "?count"}},
    {"rstrip", {"?chars"}},
    {"split", {"?sep", "?maxsplit"}},
    {"splitlines", {"?keepends"}},
    {"startswith", {"prefix"}},
    {"strip", {"?chars"}},
    {"title", {}},
    {"upper", {}},
};

const Parameters kDictMethods = {
    {"copy", {}}, {"get", {"key", "?default"}}, {"items", {}}, {"keys", {}}, {"values", {}}};

/// The method `name` of Python's str.
Value call_text_method(const std::string& name, const Text& text, const Values& given, Budget& budget) {
  budget.spend_bytes(text.size());
  if (name == "capitalize") return Text::mixed(to_capitalized(text.bytes), {&text});
  if (name == "lower") return Text::mixed(to_lower(text.bytes), {&text});
  if (name == "upper") return Text::mixed(to_upper(text.bytes), {&text});
  if (name == "title") return Text::mixed(to_title(text.bytes), {&text});
  if (name == "lstrip") return stripped(text, given[0], kLeft);
  if (name == "rstrip") return stripped(text, given[0], kRight);
  if (name == "strip") return stripped(text, given[0], kBoth);
  if (name == "startswith" || name == "endswith") return has_at_end(text, given[0], name == "startswith");
  if (name == "splitlines") {
    const bool keep_ends = !given[0].is_undefined() && integer_of(given[0], "splitlines") != 0;
    return list_of(lines_of(text, keep_ends, budget), budget);
  }
  if (name == "split") {
    const std::int64_t most = count_of(given[1], "split");
    const bool at_spaces = given[0].is_undefined() || given[0].is_none();
    return list_of(at_spaces ? split_at_spaces(text, most, budget)
                             : split_at(text, text_of(given[0], "split").bytes, most, budget),
                   budget);
  }
  if (name == "replace") {
    return replaced(text, text_of(given[0], "replace"), text_of(given[1], "replace"),
                    count_of(given[2], "replace"), budget);
  }
  if (name == "count") {
    return static_cast<std::int64_t>(split_at(text, text_of(given[0], "count").bytes, -1, budget).size()) - 1;
  }
  const Values all = elements(given[0], budget);
  for (const Value& value : all) text_of(value, "join");
  return joined(texts_of(all, budget), text, budget);
}

/// The method `name` of Python's dict.
Value call_dict_method(const std::string& name, const Value& self, const Values& given, Budget& budget) {
  const Dict& dict = *self.dict();
  if (name == "copy") return self;
  if (name == "items") return pairs_of(dict, Kind::kView, budget);
  if (name == "keys") return make_list(elements(self, budget), budget, Kind::kView);
  if (name == "values") {
    Values values;
    for (const auto& item : dict.items) values.push_back(item.second);
    return make_list(std::move(values), budget, Kind::kView);
  }
  require_hashable(given[0]);
  const Value* found = dict.find(given[0], budget);
  return found ? *found : given[1];
}

/// A filter that turns any value into a text.
Value call_text_filter(const std::string& name, const Text& text, const Values& given, Budget& budget) {
  budget.spend_bytes(text.size());
  if (name == "string") return text;
  if (name == "title") return titled(text);
  if (name == "escape") return text.is_html ? text : escaped(text, budget);
  if (name == "trim") return stripped(text, given[0], kBoth);
  if (name == "replace") {
    return replaced(text, to_text(given[0], budget), to_text(given[1], budget), count_of(given[2], "replace"),
                    budget);
  }
  if (name != "safe") return call_text_method(name, text, given, budget);
  Text html = text;
  html.is_html = true;
  return html;
}

/// A filter that takes any value with elements.
Value call_list_filter(const std::string& name, const Value& input, const Values& given, Budget& budget) {
  Values all = elements(input, budget);
  if (name == "list") return make_list(std::move(all), budget);
  if (name == "first") return all.empty() ? Value(Undefined{"the first item of an empty list"}) : all.front();
  if (name == "last") return all.empty() ? Value(Undefined{"the last item of an empty list"}) : all.back();
  if (name == "join") {
    for (Value& value : all) value = at_path(value, given[1], budget);
    return joined(texts_of(all, budget), to_text(given[0], budget), budget);
  }
  if (name == "reverse") {
    std::reverse(all.begin(), all.end());
    if (input.text()) return joined(texts_of(all, budget), {}, budget);
    return make_list(std::move(all), budget, Kind::kIterator);
  }
  if (name == "sort") {
    const bool reverse = !given[0].is_undefined() && integer_of(given[0], "sort") != 0;
    return make_list(sorted(std::move(all), given[2], is_true(given[1]), reverse, budget), budget);
  }
  if (name == "sum") {
    if (given[1].text()) throw Fault("uses sum with a text; join makes one of many");
    Value total = given[1].is_undefined() ? Value(std::int64_t{0}) : given[1];
    for (const Value& value : all) total = binary("+", total, at_path(value, given[0], budget), budget);
    return total;
  }
  if (name == "unique") {
    return make_list(unique(all, given[1], is_true(given[0]), budget), budget, Kind::kIterator);
  }
  all = sorted(std::move(all), given[1], is_true(given[0]), name == "max", budget);
  return all.empty() ? Value(Undefined{"an item of an empty list"}) : all.front();
}

Value call_filter(const std::string& name, const Value& input, const Values& given, Budget& budget) {
  if (name == "abs") return absolute(input);
  if (name == "int") return to_integer(input, given[0]);
  if (name == "float") return to_float(input, given[0]);
  if (name == "length") return static_cast<std::int64_t>(length(input));
  if (name == "tojson") return json_of(input, given, budget);
  if (name == "default") {
    const bool absent = input.is_undefined() || (is_true(given[1]) && !is_true(input));
    return absent ? given[0] : input;
  }
  if (name == "items") {
    if (input.is_undefined()) return make_list({}, budget, Kind::kIterator);
    return pairs_of(dict_of(input, "items"), Kind::kIterator, budget);
  }
  if (name == "dictsort") {
    const std::string by = given[1].is_undefined() ? "key" : text_of(given[1], "dictsort").bytes;
    if (by != "key" && by != "value") throw Fault(fmt::format("uses dictsort by {}", shown(by)));
    const Value pairs = pairs_of(dict_of(input, "dictsort"), Kind::kList, budget);
    return make_list(sorted(pairs.sequence()->items, Value(std::int64_t{by == "value"}), is_true(given[0]),
                            is_true(given[2]), budget),
                     budget);
  }
  if (name == "indent") {
    const bool has_width = !given[0].is_undefined() && !given[0].text();
    const std::int64_t width = has_width ? integer_of(given[0], "indent") : 4;
    const Text indent = given[0].text() ? *given[0].text() : repeated(Text::of_template(" "), width, budget);
    return indented(text_of(input, "indent"), indent, is_true(given[1]), is_true(given[2]), budget);
  }
  static const std::set<std::string> of_lists = {"first", "join", "last",    "list", "max",
                                                 "min",   "sort", "reverse", "sum",  "unique"};
  if (of_lists.contains(name)) {
    const bool iterator = input.sequence() && input.sequence()->kind == Kind::kIterator;
    if (iterator && (name == "last" || name == "reverse"))
      throw Fault(fmt::format("uses {} on {}", name, kMade));
    return call_list_filter(name, input, given, budget);
  }
  return call_text_filter(name, to_text(input, budget), given, budget);
}

/// The arguments of a filter or method. An undefined one must not pass for one that is missing.
Values bound(const Parameters& all, const std::string& name, Arguments given) {
  static const std::set<std::string> take_undefined = {"default", "get", "join", "replace"};
  const std::vector<std::string>& parameters = all.at(name);
  if (!take_undefined.contains(name)) {
    const auto require = [&](const Value& value) {
      require_defined(value, "gives " + shown(name) + " the value");
    };
    for (const Value& value : given.values) require(value);
    for (const auto& argument : given.named) require(argument.second);
  }
  const bool none_named = given.named.empty() || given.named.front().first == "boolean";
  if (name == "default" && given.values.empty() && none_named)
    given.named.emplace_back("default_value", Text());
  if (name == "get" && given.values.size() == 1) given.values.emplace_back(None());
  return bind(parameters, std::move(given), name);
}

/// Members of Python's types that are not known here. They are not undefined, so no template may think so.
bool is_unknown_member(const Value& self, const std::string& name) {
  static const std::set<std::string> of_texts = {
      "casefold",  "center",       "encode",       "expandtabs", "find",    "format_map",   "index",
      "isalnum",   "isalpha",      "isascii",      "isdecimal",  "isdigit", "isidentifier", "islower",
      "isnumeric", "isprintable",  "isspace",      "istitle",    "isupper", "ljust",        "maketrans",
      "partition", "removeprefix", "removesuffix", "rfind",      "rindex",  "rjust",        "rpartition",
      "rsplit",    "swapcase",     "translate",    "zfill"};
  static const std::set<std::string> of_lists = {"copy",    "count", "index", "isdisjoint",
                                                 "mapping", "start", "step",  "stop"};
  static const std::set<std::string> of_numbers = {
      "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
      "from_bytes",       "fromhex",   "hex",        "imag",      "is_integer",
      "numerator",        "real",      "to_bytes"};
  return self.function() || (self.text() && of_texts.contains(name)) ||
         (self.sequence() && of_lists.contains(name)) || (self.is_number() && of_numbers.contains(name)) ||
         (self.dict() && name == "fromkeys");
}

/// Forbidden by the sandbox of transformers: a template may not change lists and dicts.
bool changes(const Value& self, const std::string& name) {
  static const std::set<std::string> of_lists = {"append", "clear",  "extend",  "insert",
                                                 "pop",    "remove", "reverse", "sort"};
  static const std::set<std::string> of_dicts = {"clear", "pop", "popitem", "setdefault", "update"};
  return (self.sequence() && of_lists.contains(name)) || (self.dict() && of_dicts.contains(name));
}

/// The method `name` of a text, list or dict, if it has one.
Value method(const Value& self, const std::string& name, Budget& budget) {
  if (self.text()) require_plain(*self.text(), "reads " + shown(name) + " of");
  const auto of = [&](auto call) -> Value { return std::make_shared<const Function>(Function{name, call}); };
  if (self.text() && name == "format") {
    return of([self, &budget](const Arguments& given) { return formatted(*self.text(), given, budget); });
  }
  if (self.text() && kTextMethods.contains(name)) {
    return of([self, name, &budget](Arguments given) {
      return call_text_method(name, *self.text(), bound(kTextMethods, name, std::move(given)), budget);
    });
  }
  if (self.dict() && kDictMethods.contains(name)) {
    return of([self, name, &budget](Arguments given) {
      return call_dict_method(name, self, bound(kDictMethods, name, std::move(given)), budget);
    });
  }
  if (is_unknown_member(self, name) || name.starts_with("__"))
    throw Fault(fmt::format("reads {} of {}, which is not known here", shown(name), self.kind()));
  if (!changes(self, name)) return {};
  return of([self, name](const Arguments&) -> Value {
    throw Fault(fmt::format("calls {}, but a template may not change {}", shown(name), self.kind()));
  });
}

Value loop_attribute(const Loop& loop, const std::string& name) {
  const auto index = static_cast<std::int64_t>(loop.index),
             size = static_cast<std::int64_t>(loop.items.size());
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return size - index;
  if (name == "revindex0") return size - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index == size - 1;
  if (name == "length") return size;
  if (name == "depth" || name == "depth0" || name == "cycle" || name == "changed")
    throw Fault(fmt::format("uses loop.{}, which is not known here", name));
  if (name == "previtem" && index > 0) return loop.items[loop.index - 1];
  if (name == "nextitem" && index + 1 < size) return loop.items[loop.index + 1];
  return Undefined{"loop." + name};
}

}  // namespace

Value attribute(const Value& value, const std::string& name, Budget& budget) {
  budget.spend_steps();
  require_defined(value, "reads " + shown(name));
  if (value.loop()) return loop_attribute(*value.loop(), name);
  if (const Value found = method(value, name, budget); !found.is_undefined()) return found;
  const Dict* dict = value.name_space() ? &value.name_space()->attributes : value.dict();
  const Value* found = dict ? dict->find(Text::of_template(name), budget) : nullptr;
  return found ? *found : Value(Undefined{name});
}

Value item(const Value& value, const Value& key, Budget& budget) {
  budget.spend_steps();
  require_defined(value, "reads an item");
  if (const Dict* dict = value.dict()) {
    if (const Value* found = dict->find(key, budget)) return *found;
  }
  if (key.text())
    return value.dict() ? method(value, key.text()->bytes, budget)
                        : attribute(value, key.text()->bytes, budget);
  const Sequence* sequence = value.sequence();
  const bool has_items = value.text() || (sequence && sequence->kind <= Kind::kRange);
  if (!has_items || !key.integer()) return Undefined{"an item"};
  const auto size = static_cast<std::int64_t>(length(value));
  const std::int64_t index = *key.integer() < 0 ? *key.integer() + size : *key.integer();
  if (index < 0 || index >= size) return Undefined{fmt::format("item {}", *key.integer())};
  if (sequence) return sequence->items[static_cast<std::size_t>(index)];
  budget.spend_steps(value.text()->size() / 64);
  const std::vector<std::size_t> starts = value.text()->characters();
  return value.text()->part(starts[static_cast<std::size_t>(index)],
                            starts[static_cast<std::size_t>(index) + 1]);
}

Value slice(const Value& value, const Value& begin, const Value& end, const Value& step, Budget& budget) {
  require_defined(value, "takes a slice");
  const Sequence* sequence = value.sequence();
  if (!value.text() && !(sequence && sequence->kind <= Kind::kRange))
    throw Fault(fmt::format("takes a slice of {}", value.kind()));
  const auto size = static_cast<std::int64_t>(length(value));
  const auto part = [](const Value& given, std::int64_t otherwise) {
    return given.is_none() ? otherwise : integer_of(given, "a slice");
  };
  const std::int64_t stride = std::clamp(part(step, 1), -size - 1, size + 1);
  if (stride == 0) throw Fault("takes a slice with a step of 0");
  // As in Python: a negative index counts from the end, and an index outside is moved to the edge.
  const std::int64_t lowest = stride > 0 ? 0 : -1, highest = stride > 0 ? size : size - 1;
  const auto place = [&](const Value& given, std::int64_t otherwise) {
    const std::int64_t at = part(given, otherwise);
    return given.is_none() ? at : std::clamp(at < 0 ? at + size : at, lowest, highest);
  };
  const std::int64_t first = place(begin, stride > 0 ? lowest : highest);
  const std::int64_t last = place(end, stride > 0 ? highest : lowest);
  if (const Text* text = value.text()) {
    budget.spend_bytes(text->size());
    const std::vector<std::size_t> starts = text->characters();
    const auto at = [&](std::int64_t i) { return starts[static_cast<std::size_t>(i)]; };
    if (stride == 1) return first < last ? text->part(at(first), at(last)) : Text();
    Text result;
    for (std::int64_t i = first; stride > 0 ? i < last : i > last; i += stride)
      result.append(text->part(at(i), at(i + 1)));
    return result;
  }
  Values items;
  for (std::int64_t i = first; stride > 0 ? i < last : i > last; i += stride)
    items.push_back(sequence->items[static_cast<std::size_t>(i)]);
  return make_list(std::move(items), budget, sequence->kind);
}

namespace {

Value reals(const std::string& sign, double a, double b) {
  if (sign == "+") return a + b;
  if (sign == "-") return a - b;
  if (sign == "*") return a * b;
  if (b == 0) throw Fault("divides by zero");
  if (sign == "/") return a / b;
  // As in Python, the remainder has the sign of b, a zero too, and the quotient is the floor of the exact
  // one.
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (sign == "%") return rest == 0 ? std::copysign(0.0, b) : rest;
  const double quotient = std::round((a - rest) / b);
  return quotient == 0 ? std::copysign(0.0, a / b) : quotient;
}

Value concatenated(const Text& a, const Text& b, Budget& budget) {
  Text all;
  append(all, a, budget);
  append(all, b, budget);
  return all;
}

}  // namespace

Value with_sign(const std::string& sign, const Value& value, Budget& budget) {
  if (const double* real = value.as<double>()) return sign == "-" ? -*real : *real;  // 0 - 0.0 is not -0.0
  return binary(sign, Value(std::int64_t{0}), value, budget);
}

Value binary(const std::string& sign, const Value& a, const Value& b, Budget& budget) {
  if (sign == "~") return concatenated(to_text(a, budget), to_text(b, budget), budget);
  if (a.integer() && b.integer()) return integers(sign, *a.integer(), *b.integer());
  if (a.is_number() && b.is_number()) return reals(sign, *a.real(), *b.real());
  const Sequence *left = a.sequence(), *right = b.sequence();
  if (sign == "+" && a.text() && b.text()) {
    const bool html = a.text()->is_html || b.text()->is_html;
    if (!html) return concatenated(*a.text(), *b.text(), budget);
    Text all = *concatenated(escaped(*a.text(), budget), escaped(*b.text(), budget), budget).text();
    all.is_html = true;
    return all;
  }
  if (sign == "+" && left && right && left->kind == right->kind && left->kind <= Kind::kTuple) {
    Values items = elements(a, budget);
    items.insert(items.end(), right->items.begin(), right->items.end());
    return make_list(std::move(items), budget, left->kind);
  }
  if (sign == "*" && a.integer() && (b.text() || right)) return binary(sign, b, a, budget);
  if (sign == "*" && a.text()) require_plain(*a.text(), "repeats");
  if (sign == "*" && a.text() && b.integer()) return repeated(*a.text(), *b.integer(), budget);
  if (sign == "*" && left && left->kind <= Kind::kTuple && b.integer()) {
    Values items;
    for (std::int64_t i = 0; i < *b.integer() && !left->items.empty(); ++i) {
      budget.spend_bytes(left->items.size() * sizeof(Value));
      items.insert(items.end(), left->items.begin(), left->items.end());
    }
    return make_list(std::move(items), budget, left->kind);
  }
  for (const Value* side : {&a, &b}) {
    if (const auto* undefined = side->as<Undefined>()) {
      throw Fault(fmt::format("uses {} in \"{}\", which is undefined", shown(undefined->what), sign));
    }
  }
  throw Fault(fmt::format("uses \"{}\" with {} and {}", sign, a.kind(), b.kind()));
}

Value apply_filter(const std::string& name, const Value& input, Arguments arguments, Budget& budget) {
  budget.spend_steps();
  static const std::map<std::string, std::string> other_names = {
      {"d", "default"}, {"count", "length"}, {"e", "escape"}};
  const auto other = other_names.find(name);
  const std::string& known = other == other_names.end() ? name : other->second;
  // As in Jinja, these leave out empty values without an evaluation, including none.
  const auto all = [&] { return is_true(input) ? elements(input, budget) : Values(); };
  if (known == "map") return mapped(all(), std::move(arguments), budget);
  if (known == "select" || known == "reject" || known == "selectattr" || known == "rejectattr") {
    return selected(all(), known, std::move(arguments.values), budget);
  }
  static const std::set<std::string> of_html = {"default", "escape", "length", "safe", "string", "tojson"};
  if (input.text() && !of_html.contains(known)) require_plain(*input.text(), "uses " + shown(name) + " with");
  const auto found = kFilters.find(known);
  if (found == kFilters.end())
    throw Fault(fmt::format("uses the filter {}, which is not known here", shown(name)));
  return call_filter(known, input, bound(kFilters, known, std::move(arguments)), budget);
}

bool apply_test(const std::string& name, const Value& in, const std::vector<Value>& arguments,
                Budget& budget) {
  budget.spend_steps();
  static const std::set<std::string> of_two = {"divisibleby", "in",          "eq", "equalto",  "==", "sameas",
                                               "ne",          "!=",          "lt", "lessthan", "<",  "gt",
                                               ">",           "greaterthan", "le", "<=",       "ge", ">="};
  if (!of_two.contains(name) && !arguments.empty())
    throw Fault(
        fmt::format("uses the test {} with {} arguments instead of none", shown(name), arguments.size()));
  const auto other = [&]() -> const Value& {
    if (arguments.size() != 1)
      throw Fault(
          fmt::format("uses the test {} with {} arguments instead of one", shown(name), arguments.size()));
    return arguments.front();
  };
  const auto remainder = [&](const Value& by) {
    return *binary("%", Value(integer_of(in, name.c_str())), by, budget).integer();
  };
  const Sequence* sequence = in.sequence();
  if (name == "defined") return !in.is_undefined();
  if (name == "undefined") return in.is_undefined();
  if (name == "none") return in.is_none();
  if (name == "string") return in.text() != nullptr;
  if (name == "mapping") return in.dict() != nullptr;
  if (name == "iterable") return in.is_undefined() || in.text() || in.dict() || sequence;
  if (name == "sequence")
    return in.is_undefined() || in.text() || in.dict() || (sequence && sequence->kind <= Kind::kRange);
  if (name == "number") return in.is_number();
  if (name == "boolean") return in.as<bool>() != nullptr;
  if (name == "integer") return in.as<std::int64_t>() != nullptr;
  if (name == "float") return in.as<double>() != nullptr;
  if (name == "callable") return in.function() || in.is_undefined();
  if (name == "true") return in.as<bool>() && *in.as<bool>();
  if (name == "false") return in.as<bool>() && !*in.as<bool>();
  if (name == "odd") return remainder(Value(std::int64_t{2})) == 1;
  if (name == "even") return remainder(Value(std::int64_t{2})) == 0;
  if (name == "divisibleby") return remainder(Value(integer_of(other(), "divisibleby"))) == 0;
  if (name == "lower" || name == "upper") {
    return has_only_case(to_text(in, budget).bytes, name == "lower");
  }
  if (name == "in") return contains(other(), in, budget);
  if (name == "eq" || name == "equalto" || name == "==") return equal(in, other(), budget);
  if (name == "sameas") {
    if (std::string_view(in.kind()) != other().kind()) return false;
    if (!in.as<bool>() && !in.is_none()) throw Fault(fmt::format("uses sameas with {}", in.kind()));
    return equal(in, other(), budget);
  }
  if (name == "ne" || name == "!=") return !equal(in, other(), budget);
  if (name == "lt" || name == "lessthan" || name == "<") return less(in, other(), budget);
  if (name == "gt" || name == "greaterthan" || name == ">") return less(other(), in, budget);
  if (name == "le" || name == "<=") return !less(other(), in, budget);
  if (name == "ge" || name == ">=") return !less(in, other(), budget);
  throw Fault(fmt::format("uses the test {}, which is not known here", shown(name)));
}

}  // namespace staircase::jinja
