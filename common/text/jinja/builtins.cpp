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

// Operations on texts. Each of them keeps the origin of every byte.

const Text& text_of(const Value& value, const char* what) {
  if (!value.text()) throw Fault(fmt::format("uses {} with {} instead of a text", what, value.kind()));
  return *value.text();
}

std::int64_t integer_of(const Value& value, const char* what) {
  if (!value.integer()) throw Fault(fmt::format("uses {} with {} instead of an integer", what, value.kind()));
  return *value.integer();
}

enum Side { kLeft = 1, kRight = 2, kBoth = 3 };

/// Removes white space, or the characters of `set`, from the ends of a text.
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

/// The parts of `text` between separators; at most `most` + 1 parts unless `most` is negative.
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
  Text all;  // as in Python, inserts between all characters
  const std::vector<std::size_t> starts = text.characters();
  for (std::size_t i = 0; i < starts.size(); ++i) {
    if (most < 0 || static_cast<std::int64_t>(i) < most) append(all, to, budget);
    const std::size_t end = i + 1 < starts.size() ? starts[i + 1] : starts[i];
    append(all, text.part(starts[i], end), budget);
  }
  return all;
}

/// As Python's str.splitlines(), which has more ends of lines than "\n".
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
  append(ended, Text::of_template("\n"), budget);  // so that an empty text also has a line
  std::vector<Text> lines = lines_of(ended, false, budget);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i == 0 ? !first : !blank && lines[i].size() == 0) continue;
    Text line = indent;
    append(line, lines[i], budget);
    lines[i] = std::move(line);
  }
  return joined(lines, Text::of_template("\n"), budget);
}

/// Fills in "{}" and "{name}" in `text`, as Python's str.format() does.
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

/// Capitalizes the first letter of each word, like Jinja's filter: a word ends at white space and -([{<.
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

/// The value at a path such as "a.b" or 1 inside `value`.
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

/// The key for comparisons; ignores case unless `case_sensitive` is set.
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

/// `map`: applies another filter to each element, or reads its attribute.
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

/// `select` and similar filters: keeps the elements for which a test, perhaps of an attribute, has the wanted
/// result.
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
    const bool down = a % b != 0 && (a < 0) != (b < 0);  // Python rounds down, C++ towards zero
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

/// The text of a number, without white space and "+". Rejects digits of other scripts and "1_000", which
/// Python would also read.
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

// Methods, filters and tests by name.

/// One call of a method or filter: the value that it is called on, and the values of its parameters.
struct Call {
  const Value& self;
  const Values& given;
  Budget& budget;

  /// The value as a text, for the methods of texts and for text filters.
  Text text() const {
    Text text = to_text(self, budget);
    budget.spend_bytes(text.size());
    return text;
  }
  Values elements() const { return jinja::elements(self, budget); }
};

struct Callable {
  std::vector<std::string> parameters;  // as bind() takes them
  Value (*run)(const Call& call);
};
using Callables = std::map<std::string, Callable>;

/// tojson(ensure_ascii, indent, separators, sort_keys), as transformers defines it.
Value json_of(const Call& call) {
  const Values& given = call.given;
  JsonStyle style;
  style.ensure_ascii = is_true(given[0]);
  style.sort_keys = is_true(given[3]);
  if (given[1].text()) {
    style.indent = given[1].text()->bytes;
  } else if (!given[1].is_undefined() && !given[1].is_none()) {
    style.indent = repeated(Text::of_template(" "), integer_of(given[1], "tojson"), call.budget).bytes;
  }
  style.comma = style.indent ? "," : ", ";
  style.colon = ": ";
  if (const Sequence* separators = given[2].sequence()) {
    if (separators->items.size() != 2) throw Fault("uses tojson with separators that are not two");
    style.comma = text_of(separators->items[0], "tojson").bytes;
    style.colon = text_of(separators->items[1], "tojson").bytes;
  }
  return to_json(call.self, style, call.budget);
}

/// Applies `change` to the text: to_lower and the like.
template <std::string (*change)(std::string_view)>
Value changed(const Call& call) {
  const Text text = call.text();
  return Text::mixed(change(text.bytes), {&text});
}

Value split(const Call& call) {
  const Text text = call.text();
  const std::int64_t most = count_of(call.given[1], "split");
  const bool at_spaces = call.given[0].is_undefined() || call.given[0].is_none();
  return list_of(at_spaces ? split_at_spaces(text, most, call.budget)
                           : split_at(text, text_of(call.given[0], "split").bytes, most, call.budget),
                 call.budget);
}

/// The smallest element; with `reverse`, the largest.
Value extreme(const Call& call, bool reverse) {
  const Values all = sorted(call.elements(), call.given[1], is_true(call.given[0]), reverse, call.budget);
  return all.empty() ? Value(Undefined{"an item of an empty list"}) : all.front();
}

bool is_iterator(const Value& value) {
  return value.sequence() && value.sequence()->kind == Kind::kIterator;
}

/// Python's methods of str.
const Callables kTextMethods = {
    {"capitalize", {{}, changed<to_capitalized>}},
    {"count",
     {{"sub"},
      [](const Call& call) -> Value {
        const std::string& part = text_of(call.given[0], "count").bytes;
        return static_cast<std::int64_t>(split_at(call.text(), part, -1, call.budget).size()) - 1;
      }}},
    {"endswith",
     {{"suffix"}, [](const Call& call) -> Value { return has_at_end(call.text(), call.given[0], false); }}},
    {"join",
     {{"iterable"},
      [](const Call& call) -> Value {
        const Values all = jinja::elements(call.given[0], call.budget);
        for (const Value& value : all) text_of(value, "join");
        return joined(texts_of(all, call.budget), call.text(), call.budget);
      }}},
    {"lower", {{}, changed<to_lower>}},
    {"lstrip", {{"?chars"}, [](const Call& call) { return stripped(call.text(), call.given[0], kLeft); }}},
    {"replace",
     {{"old", "new", "?count"},
      [](const Call& call) -> Value {
        return replaced(call.text(), text_of(call.given[0], "replace"), text_of(call.given[1], "replace"),
                        count_of(call.given[2], "replace"), call.budget);
      }}},
    {"rstrip", {{"?chars"}, [](const Call& call) { return stripped(call.text(), call.given[0], kRight); }}},
    {"split", {{"?sep", "?maxsplit"}, split}},
    {"splitlines",
     {{"?keepends"},
      [](const Call& call) {
        const Value& keep_ends = call.given[0];
        const bool keep = !keep_ends.is_undefined() && integer_of(keep_ends, "splitlines") != 0;
        return list_of(lines_of(call.text(), keep, call.budget), call.budget);
      }}},
    {"startswith",
     {{"prefix"}, [](const Call& call) -> Value { return has_at_end(call.text(), call.given[0], true); }}},
    {"strip", {{"?chars"}, [](const Call& call) { return stripped(call.text(), call.given[0], kBoth); }}},
    {"title", {{}, changed<to_title>}},
    {"upper", {{}, changed<to_upper>}},
};

/// Python's methods of dict.
const Callables kDictMethods = {
    {"copy", {{}, [](const Call& call) { return call.self; }}},
    {"get",
     {{"key", "?default"},
      [](const Call& call) {
        require_hashable(call.given[0]);
        const Value* found = call.self.dict()->find(call.given[0], call.budget);
        return found ? *found : call.given[1];
      }}},
    {"items", {{}, [](const Call& call) { return pairs_of(*call.self.dict(), Kind::kView, call.budget); }}},
    {"keys", {{}, [](const Call& call) { return make_list(call.elements(), call.budget, Kind::kView); }}},
    {"values",
     {{},
      [](const Call& call) {
        Values values;
        for (const auto& item : call.self.dict()->items) values.push_back(item.second);
        return make_list(std::move(values), call.budget, Kind::kView);
      }}},
};

const Callables kFilters = {
    {"abs", {{}, [](const Call& call) { return absolute(call.self); }}},
    {"capitalize", {{}, changed<to_capitalized>}},
    {"default",
     {{"?default_value", "?boolean"},
      [](const Call& call) {
        const bool absent = call.self.is_undefined() || (is_true(call.given[1]) && !is_true(call.self));
        return absent ? call.given[0] : call.self;
      }}},
    {"dictsort",
     {{"?case_sensitive", "?by", "?reverse"},
      [](const Call& call) {
        const Values& given = call.given;
        const std::string by = given[1].is_undefined() ? "key" : text_of(given[1], "dictsort").bytes;
        if (by != "key" && by != "value") throw Fault(fmt::format("uses dictsort by {}", shown(by)));
        const Value pairs = pairs_of(dict_of(call.self, "dictsort"), Kind::kList, call.budget);
        return make_list(sorted(pairs.sequence()->items, Value(std::int64_t{by == "value"}),
                                is_true(given[0]), is_true(given[2]), call.budget),
                         call.budget);
      }}},
    {"escape", {{}, [](const Call& call) -> Value { return escaped(call.text(), call.budget); }}},
    {"first",
     {{},
      [](const Call& call) {
        const Values all = call.elements();
        return all.empty() ? Value(Undefined{"the first item of an empty list"}) : all.front();
      }}},
    {"float", {{"?default"}, [](const Call& call) { return to_float(call.self, call.given[0]); }}},
    {"indent",
     {{"?width", "?first", "?blank"},
      [](const Call& call) -> Value {
        const Value& width = call.given[0];
        const bool has_number = !width.is_undefined() && !width.text();
        const Text indent =
            width.text()
                ? *width.text()
                : repeated(Text::of_template(" "), has_number ? integer_of(width, "indent") : 4, call.budget);
        return indented(text_of(call.self, "indent"), indent, is_true(call.given[1]), is_true(call.given[2]),
                        call.budget);
      }}},
    {"int", {{"?default"}, [](const Call& call) { return to_integer(call.self, call.given[0]); }}},
    {"items",
     {{},
      [](const Call& call) {
        if (call.self.is_undefined()) return make_list({}, call.budget, Kind::kIterator);
        return pairs_of(dict_of(call.self, "items"), Kind::kIterator, call.budget);
      }}},
    {"join",
     {{"?d", "?attribute"},
      [](const Call& call) -> Value {
        Values all = call.elements();
        for (Value& value : all) value = at_path(value, call.given[1], call.budget);
        return joined(texts_of(all, call.budget), to_text(call.given[0], call.budget), call.budget);
      }}},
    {"last",
     {{},
      [](const Call& call) {
        if (is_iterator(call.self)) throw Fault(fmt::format("uses last on {}", kIteratorInMessages));
        const Values all = call.elements();
        return all.empty() ? Value(Undefined{"the last item of an empty list"}) : all.back();
      }}},
    {"length", {{}, [](const Call& call) -> Value { return static_cast<std::int64_t>(length(call.self)); }}},
    {"list", {{}, [](const Call& call) { return make_list(call.elements(), call.budget); }}},
    {"lower", {{}, changed<to_lower>}},
    {"max", {{"?case_sensitive", "?attribute"}, [](const Call& call) { return extreme(call, true); }}},
    {"min", {{"?case_sensitive", "?attribute"}, [](const Call& call) { return extreme(call, false); }}},
    {"replace",
     {{"old", "new", "?count"},
      [](const Call& call) -> Value {
        return replaced(call.text(), to_text(call.given[0], call.budget), to_text(call.given[1], call.budget),
                        count_of(call.given[2], "replace"), call.budget);
      }}},
    {"reverse",
     {{},
      [](const Call& call) -> Value {
        Values all = call.elements();
        std::reverse(all.begin(), all.end());
        if (call.self.text()) return joined(texts_of(all, call.budget), {}, call.budget);
        // As in Jinja, reversing an iterator makes a list.
        return make_list(std::move(all), call.budget, is_iterator(call.self) ? Kind::kList : Kind::kIterator);
      }}},
    {"safe",
     {{},
      [](const Call& call) -> Value {
        Text html = call.text();
        html.is_html = true;
        return html;
      }}},
    {"sort",
     {{"?reverse", "?case_sensitive", "?attribute"},
      [](const Call& call) {
        const Values& given = call.given;
        const bool reverse = !given[0].is_undefined() && integer_of(given[0], "sort") != 0;
        return make_list(sorted(call.elements(), given[2], is_true(given[1]), reverse, call.budget),
                         call.budget);
      }}},
    {"string", {{}, [](const Call& call) -> Value { return call.text(); }}},
    {"sum",
     {{"?attribute", "?start"},
      [](const Call& call) {
        const Values all = call.elements();
        Value total = call.given[1].is_undefined() ? Value(std::int64_t{0}) : call.given[1];
        if (total.text()) throw Fault("uses sum with a text; join makes one of many");
        for (const Value& value : all)
          total = binary("+", total, at_path(value, call.given[0], call.budget), call.budget);
        return total;
      }}},
    {"title", {{}, [](const Call& call) -> Value { return titled(call.text()); }}},
    {"tojson", {{"?ensure_ascii", "?indent", "?separators", "?sort_keys"}, json_of}},
    {"trim", {{"?chars"}, [](const Call& call) { return stripped(call.text(), call.given[0], kBoth); }}},
    {"unique",
     {{"?case_sensitive", "?attribute"},
      [](const Call& call) {
        return make_list(unique(call.elements(), call.given[1], is_true(call.given[0]), call.budget),
                         call.budget, Kind::kIterator);
      }}},
    {"upper", {{}, changed<to_upper>}},
};

/// Calls `name`. An undefined argument must not count as a missing one.
Value call(const Callables& all, const std::string& name, const Value& self, Arguments given,
           Budget& budget) {
  static const std::set<std::string> take_undefined = {"default", "get", "join", "replace"};
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
  const Callable& callable = all.at(name);
  return callable.run({self, bind(callable.parameters, std::move(given), name), budget});
}

/// Whether Python's type has this member, but this implementation does not. Such a member must not appear to
/// be undefined.
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

/// Whether the method changes a list or a dict, which transformers' sandbox forbids.
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
  static const Callables none;
  const Callables& methods = self.text() ? kTextMethods : self.dict() ? kDictMethods : none;
  if (methods.contains(name)) {
    return of([&methods, self, name, &budget](Arguments given) {
      return call(methods, name, self, std::move(given), budget);
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
  // As in Python, a negative index counts from the end, and an index outside of the list moves to its edge.
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
  // As in Python, the remainder has the sign of b, even if it is zero, and the quotient is the floor of the
  // exact one.
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

/// As Jinja's sameas, but only for values that can be compared without identity.
bool same(const Value& a, const Value& b, Budget& budget) {
  if (std::string_view(a.kind()) != b.kind()) return false;
  if (!a.as<bool>() && !a.is_none()) throw Fault(fmt::format("uses sameas with {}", a.kind()));
  return equal(a, b, budget);
}

bool is_divisible(const Value& a, std::int64_t b, const char* test) {
  return *integers("%", integer_of(a, test), b).integer() == 0;
}

// The tests without arguments, by the name after "is".
const std::map<std::string, bool (*)(const Value& value, Budget& budget)> kTests = {
    {"boolean", [](const Value& value, Budget&) { return value.as<bool>() != nullptr; }},
    {"callable", [](const Value& value, Budget&) { return value.function() || value.is_undefined(); }},
    {"defined", [](const Value& value, Budget&) { return !value.is_undefined(); }},
    {"even", [](const Value& value, Budget&) { return is_divisible(value, 2, "even"); }},
    {"false", [](const Value& value, Budget&) { return value.as<bool>() && !*value.as<bool>(); }},
    {"float", [](const Value& value, Budget&) { return value.as<double>() != nullptr; }},
    {"integer", [](const Value& value, Budget&) { return value.as<std::int64_t>() != nullptr; }},
    {"iterable",
     [](const Value& value, Budget&) {
       return value.is_undefined() || value.text() || value.dict() || value.sequence();
     }},
    {"lower",
     [](const Value& value, Budget& budget) { return has_only_case(to_text(value, budget).bytes, true); }},
    {"mapping", [](const Value& value, Budget&) { return value.dict() != nullptr; }},
    {"none", [](const Value& value, Budget&) { return value.is_none(); }},
    {"number", [](const Value& value, Budget&) { return value.is_number(); }},
    {"odd", [](const Value& value, Budget&) { return !is_divisible(value, 2, "odd"); }},
    {"sequence",
     [](const Value& value, Budget&) {
       const Sequence* sequence = value.sequence();
       return value.is_undefined() || value.text() || value.dict() ||
              (sequence && sequence->kind <= Kind::kRange);
     }},
    {"string", [](const Value& value, Budget&) { return value.text() != nullptr; }},
    {"true", [](const Value& value, Budget&) { return value.as<bool>() && *value.as<bool>(); }},
    {"undefined", [](const Value& value, Budget&) { return value.is_undefined(); }},
    {"upper",
     [](const Value& value, Budget& budget) { return has_only_case(to_text(value, budget).bytes, false); }},
};

// The tests that compare with one other value.
const std::map<std::string, bool (*)(const Value& a, const Value& b, Budget& budget)> kComparisons = {
    {"divisibleby", [](const Value& a, const Value& b,
                       Budget&) { return is_divisible(a, integer_of(b, "divisibleby"), "divisibleby"); }},
    {"eq", equal},
    {"ge", [](const Value& a, const Value& b, Budget& budget) { return !less(a, b, budget); }},
    {"gt", [](const Value& a, const Value& b, Budget& budget) { return less(b, a, budget); }},
    {"in", [](const Value& a, const Value& b, Budget& budget) { return contains(b, a, budget); }},
    {"le", [](const Value& a, const Value& b, Budget& budget) { return !less(b, a, budget); }},
    {"lt", less},
    {"ne", [](const Value& a, const Value& b, Budget& budget) { return !equal(a, b, budget); }},
    {"sameas", same},
};

/// The usual name of a filter or test that has several names.
const std::string& usual_name(const std::string& name) {
  static const std::map<std::string, std::string> others = {
      {"d", "default"},  {"count", "length"},   {"e", "escape"}, {"==", "eq"},
      {"equalto", "eq"}, {"!=", "ne"},          {"<", "lt"},     {"lessthan", "lt"},
      {">", "gt"},       {"greaterthan", "gt"}, {"<=", "le"},    {">=", "ge"}};
  const auto other = others.find(name);
  return other == others.end() ? name : other->second;
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
  const std::string& known = usual_name(name);
  // As in Jinja, these filters treat an input that counts as false, such as none, as empty.
  const auto all = [&] { return is_true(input) ? elements(input, budget) : Values(); };
  if (known == "map") return mapped(all(), std::move(arguments), budget);
  if (known == "select" || known == "reject" || known == "selectattr" || known == "rejectattr") {
    return selected(all(), known, std::move(arguments.values), budget);
  }
  static const std::set<std::string> of_html = {"default", "escape", "length", "safe", "string", "tojson"};
  if (input.text() && !of_html.contains(known)) require_plain(*input.text(), "uses " + shown(name) + " with");
  if (!kFilters.contains(known))
    throw Fault(fmt::format("uses the filter {}, which is not known here", shown(name)));
  return call(kFilters, known, input, std::move(arguments), budget);
}

bool apply_test(const std::string& name, const Value& input, const std::vector<Value>& arguments,
                Budget& budget) {
  budget.spend_steps();
  const auto test = kTests.find(name);
  const auto comparison = kComparisons.find(usual_name(name));
  const bool takes_one = comparison != kComparisons.end();
  if (!takes_one && !arguments.empty())
    throw Fault(
        fmt::format("uses the test {} with {} arguments instead of none", shown(name), arguments.size()));
  if (takes_one && arguments.size() != 1)
    throw Fault(
        fmt::format("uses the test {} with {} arguments instead of one", shown(name), arguments.size()));
  if (takes_one) return comparison->second(input, arguments.front(), budget);
  if (test == kTests.end())
    throw Fault(fmt::format("uses the test {}, which is not known here", shown(name)));
  return test->second(input, budget);
}

}  // namespace staircase::jinja
