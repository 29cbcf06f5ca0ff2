#include "common/text/jinja/builtins.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
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

std::vector<Text> lines_of(const Text& text, Budget& budget) {
  std::vector<Text> lines = split_at(text, "\n", -1, budget);
  for (Text& line : lines) {
    if (line.bytes.ends_with('\r')) line = line.part(0, line.size() - 1);
  }
  return lines;
}

Text indented(const Text& text, const Text& indent, bool first, bool blank, Budget& budget) {
  std::vector<Text> lines = lines_of(text, budget);
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

Text capitalized(const Text& text) {
  const std::string_view first = first_character(text.bytes);
  return Text::mixed(to_upper(first) + to_lower(std::string_view(text.bytes).substr(first.size())), {&text});
}

/// Each word with a capital first letter, like Jinja's filter.
Text titled(const Text& text) {
  std::string title;
  bool begins = true;
  for (std::string_view rest = text.bytes; !rest.empty();) {
    const std::string_view character = first_character(rest);
    title += begins ? to_upper(character) : to_lower(character);
    begins =
        spaces_in_front(character) > 0 || std::string_view("-([{<").find(character) != std::string_view::npos;
    rest.remove_prefix(character.size());
  }
  return Text::mixed(title, {&text});
}

Text escaped(const Text& text, Budget& budget) {
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
  if (ends.sequence()) {
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
  std::string test;
  if (!arguments.empty()) {
    test = text_of(arguments.front(), filter.c_str()).bytes;
    arguments.erase(arguments.begin());
  }
  Values kept;
  for (const Value& value : values) {
    const Value tested = at_path(value, path, budget);
    if ((test.empty() ? is_true(tested) : apply_test(test, tested, arguments, budget)) == wanted)
      kept.push_back(value);
  }
  return make_list(std::move(kept), budget, Kind::kIterator);
}

// Numbers.

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
    if (sign == "/") return static_cast<double>(a) / static_cast<double>(b);
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

Value to_integer(const Value& value, const Value& otherwise) {
  if (value.integer()) return *value.integer();
  double number = 0;
  if (const Text* text = value.text()) {
    const Value bare = stripped(*text, {}, kBoth);
    std::string_view digits = bare.text()->bytes;
    if (digits.starts_with('+')) digits.remove_prefix(1);
    std::int64_t whole = 0;
    const char* const end = digits.data() + digits.size();
    if (const auto [at, fault] = std::from_chars(digits.data(), end, whole);
        fault == std::errc() && at == end)
      return whole;
    number = decimal(digits).value_or(NAN);
  } else {
    number = value.real().value_or(NAN);
  }
  if (std::isfinite(number) && std::abs(number) < 9e18) return static_cast<std::int64_t>(number);
  return otherwise.is_undefined() ? Value(std::int64_t{0}) : otherwise;
}

Value to_float(const Value& value, const Value& otherwise) {
  if (value.real()) return *value.real();
  if (const Text* text = value.text()) {
    const Value bare = stripped(*text, {}, kBoth);
    if (const auto number = decimal(bare.text()->bytes)) return *number;
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
    {"splitlines", {}},
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
  if (name == "capitalize") return capitalized(text);
  if (name == "lower") return Text::mixed(to_lower(text.bytes), {&text});
  if (name == "upper") return Text::mixed(to_upper(text.bytes), {&text});
  if (name == "title") return titled(text);
  if (name == "lstrip") return stripped(text, given[0], kLeft);
  if (name == "rstrip") return stripped(text, given[0], kRight);
  if (name == "strip") return stripped(text, given[0], kBoth);
  if (name == "startswith" || name == "endswith") return has_at_end(text, given[0], name == "startswith");
  if (name == "splitlines") {
    std::vector<Text> lines = lines_of(text, budget);
    if (lines.back().size() == 0) lines.pop_back();
    return list_of(std::move(lines), budget);
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
  const Value* found = dict.find(given[0], budget);
  return found ? *found : given[1].is_undefined() ? Value(None()) : given[1];
}

/// A filter that turns any value into a text.
Value call_text_filter(const std::string& name, const Text& text, const Values& given, Budget& budget) {
  budget.spend_bytes(text.size());
  if (name == "string") return text;
  if (name == "escape") return escaped(text, budget);
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
    return make_list(sorted(std::move(all), given[2], is_true(given[1]), is_true(given[0]), budget), budget);
  }
  if (name == "sum") {
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
    return !absent ? input : given[0].is_undefined() ? Value(Text()) : given[0];
  }
  if (name == "items") {
    if (input.is_undefined()) return make_list({}, budget, Kind::kIterator);
    return pairs_of(dict_of(input, "items"), Kind::kIterator, budget);
  }
  if (name == "dictsort") {
    const bool by_value = given[1].text() && given[1].text()->bytes == "value";
    const Value pairs = pairs_of(dict_of(input, "dictsort"), Kind::kList, budget);
    return make_list(sorted(pairs.sequence()->items, Value(std::int64_t{by_value}), is_true(given[0]),
                            is_true(given[2]), budget),
                     budget);
  }
  if (name == "indent") {
    const std::int64_t width = given[0].integer().value_or(4);
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

/// Forbidden by the sandbox of transformers: a template may not change lists and dicts.
bool changes(const Value& self, const std::string& name) {
  static const std::set<std::string> of_lists = {"append", "clear",  "extend",  "insert",
                                                 "pop",    "remove", "reverse", "sort"};
  static const std::set<std::string> of_dicts = {"clear", "pop", "popitem", "setdefault", "update"};
  return (self.sequence() && of_lists.contains(name)) || (self.dict() && of_dicts.contains(name));
}

/// The method `name` of a text, list or dict, if it has one.
Value method(const Value& self, const std::string& name, Budget& budget) {
  const auto of = [&](auto call) -> Value { return std::make_shared<const Function>(Function{name, call}); };
  if (self.text() && name == "format") {
    return of([self, &budget](const Arguments& given) { return formatted(*self.text(), given, budget); });
  }
  if (self.text() && kTextMethods.contains(name)) {
    return of([self, name, &budget](Arguments given) {
      return call_text_method(name, *self.text(), bind(kTextMethods.at(name), std::move(given), name),
                              budget);
    });
  }
  if (self.dict() && kDictMethods.contains(name)) {
    return of([self, name, &budget](Arguments given) {
      return call_dict_method(name, self, bind(kDictMethods.at(name), std::move(given), name), budget);
    });
  }
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
  if (name == "depth" || name == "depth0")
    throw Fault(fmt::format("uses loop.{}, which is not known here", name));
  if (name == "previtem" && index > 0) return loop.items[loop.index - 1];
  if (name == "nextitem" && index + 1 < size) return loop.items[loop.index + 1];
  return Undefined{"loop." + name};
}

void require_defined(const Value& value, const std::string& use) {
  if (const auto* undefined = value.as<Undefined>()) {
    throw Fault(fmt::format("{} of {}, which is undefined", use, shown(undefined->what)));
  }
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
  const bool has_items = value.text() || (sequence && sequence->kind <= Kind::kTuple);
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
  if (!value.text() && !(sequence && sequence->kind <= Kind::kTuple)) return Undefined{"a slice"};
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
  return sign == "//" ? std::floor(a / b) : a - b * std::floor(a / b);
}

Value concatenated(const Text& a, const Text& b, Budget& budget) {
  Text all;
  append(all, a, budget);
  append(all, b, budget);
  return all;
}

}  // namespace

Value binary(const std::string& sign, const Value& a, const Value& b, Budget& budget) {
  if (sign == "~") return concatenated(to_text(a, budget), to_text(b, budget), budget);
  if (a.integer() && b.integer()) return integers(sign, *a.integer(), *b.integer());
  if (a.is_number() && b.is_number()) return reals(sign, *a.real(), *b.real());
  const Sequence *left = a.sequence(), *right = b.sequence();
  if (sign == "+" && a.text() && b.text()) {
    const bool html = a.text()->is_html || b.text()->is_html;
    if (!html) return concatenated(*a.text(), *b.text(), budget);
    const auto safe = [&](const Text& text) { return text.is_html ? text : escaped(text, budget); };
    Text all = *concatenated(safe(*a.text()), safe(*b.text()), budget).text();
    all.is_html = true;
    return all;
  }
  if (sign == "+" && left && right && left->kind == right->kind && left->kind <= Kind::kTuple) {
    Values items = elements(a, budget);
    items.insert(items.end(), right->items.begin(), right->items.end());
    return make_list(std::move(items), budget, left->kind);
  }
  if (sign == "*" && a.integer() && (b.text() || right)) return binary(sign, b, a, budget);
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
  const auto found = kFilters.find(known);
  if (found == kFilters.end())
    throw Fault(fmt::format("uses the filter {}, which is not known here", shown(name)));
  return call_filter(known, input, bind(found->second, std::move(arguments), name), budget);
}

bool apply_test(const std::string& name, const Value& in, const std::vector<Value>& arguments,
                Budget& budget) {
  budget.spend_steps();
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
    return in.is_undefined() || in.text() || in.dict() || (sequence && sequence->kind <= Kind::kTuple);
  if (name == "number") return in.is_number();
  if (name == "boolean") return in.as<bool>() != nullptr;
  if (name == "integer") return in.as<std::int64_t>() != nullptr;
  if (name == "float") return in.as<double>() != nullptr;
  if (name == "callable") return in.function() != nullptr;
  if (name == "true") return in.as<bool>() && *in.as<bool>();
  if (name == "false") return in.as<bool>() && !*in.as<bool>();
  if (name == "odd") return remainder(Value(std::int64_t{2})) == 1;
  if (name == "even") return remainder(Value(std::int64_t{2})) == 0;
  if (name == "divisibleby") return remainder(Value(integer_of(other(), "divisibleby"))) == 0;
  if (name == "lower" || name == "upper") {
    const std::string text = to_text(in, budget).bytes, low = to_lower(text), high = to_upper(text);
    return low != high && text == (name == "lower" ? low : high);
  }
  if (name == "in") return contains(other(), in, budget);
  if (name == "eq" || name == "equalto" || name == "==") return equal(in, other(), budget);
  if (name == "sameas") return std::string_view(in.kind()) == other().kind() && equal(in, other(), budget);
  if (name == "ne" || name == "!=") return !equal(in, other(), budget);
  if (name == "lt" || name == "lessthan" || name == "<") return less(in, other(), budget);
  if (name == "gt" || name == "greaterthan" || name == ">") return less(other(), in, budget);
  if (name == "le" || name == "<=") return !less(other(), in, budget);
  if (name == "ge" || name == ">=") return !less(in, other(), budget);
  throw Fault(fmt::format("uses the test {}, which is not known here", shown(name)));
}

}  // namespace staircase::jinja
