#include "common/text/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <compare>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/base/error.h"

namespace staircase::jinja {

void Budget::spend_steps(std::size_t count) {
  if (count > static_cast<std::size_t>(std::max<std::int64_t>(steps, 0))) {
    throw Fault("is reached after more steps than a template may take");
  }
  steps -= static_cast<std::int64_t>(count);
}

void Budget::spend_bytes(std::size_t count) {
  if (count > static_cast<std::size_t>(std::max<std::int64_t>(bytes, 0))) {
    throw Fault("makes more text than a template may make");
  }
  bytes -= static_cast<std::int64_t>(count);
  spend_steps(count / 64);
}

void Budget::spend_product(std::size_t a, std::size_t b) {
  spend_steps((a / 64 + 1) * (b / 16 + 1));
}

std::optional<std::int64_t> Value::integer() const {
  if (const auto* truth = as<bool>()) return *truth ? 1 : 0;
  if (const auto* number = as<std::int64_t>()) return *number;
  return {};
}

std::optional<double> Value::real() const {
  if (const auto* number = as<double>()) return *number;
  if (const auto number = integer()) return static_cast<double>(*number);
  return {};
}

const char* Value::kind() const {
  static constexpr const char* kKinds[] = {"undefined",   "none",   "true or false", "an integer",
                                           "a number",    "a text", "a list",        "a dict",
                                           "a namespace", "a loop", "a function"};
  return kKinds[content_.index()];
}

namespace {

int depth_of(const Value& value) {
  if (const Sequence* sequence = value.sequence()) return sequence->depth;
  if (const Dict* dict = value.dict()) return dict->depth;
  return 0;
}

int deeper(int depth) {
  if (depth >= kMostValueNesting) throw Fault("nests lists too deeply");
  return depth + 1;
}

}  // namespace

Value make_list(std::vector<Value> items, Budget& budget, Sequence::Kind kind) {
  budget.spend_bytes(items.size() * sizeof(Value));
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, depth_of(item));
  return Value(std::make_shared<const Sequence>(Sequence{std::move(items), kind, deeper(depth)}));
}

Value make_dict(Dict dict, Budget& budget) {
  budget.spend_bytes(dict.items.size() * 2 * sizeof(Value));
  int depth = 0;
  for (const auto& [key, value] : dict.items) depth = std::max({depth, depth_of(key), depth_of(value)});
  dict.depth = deeper(depth);
  return Value(std::make_shared<const Dict>(std::move(dict)));
}

void require_plain(const Text& text, const std::string& use) {
  if (text.is_html) throw Fault(use + " a text that |safe or |escape made, which is not known here");
}

void require_hashable(const Value& key) {
  const Sequence* sequence = key.sequence();
  if (key.dict() || (sequence && sequence->kind != Sequence::Kind::kTuple))
    throw Fault(fmt::format("uses {} as a key", key.kind()));
  if (sequence) std::for_each(sequence->items.begin(), sequence->items.end(), require_hashable);
}

const Value* Dict::find(const Value& key, Budget& budget) const {
  for (const auto& [name, value] : items) {
    if (equal(name, key, budget)) return &value;
  }
  return nullptr;
}

void Dict::set(Value key, Value value, Budget& budget) {
  require_hashable(key);
  for (auto& item : items) {
    if (equal(item.first, key, budget)) {
      item.second = std::move(value);
      return;
    }
  }
  items.emplace_back(std::move(key), std::move(value));
}

Value from_json(const nlohmann::ordered_json& json, int depth) {
  deeper(depth);
  if (json.is_null()) return Value(None());
  if (json.is_boolean()) return Value(json.get<bool>());
  if (json.is_string()) return Value(Text::of_data(json.get<std::string>()));
  if (json.is_number_float()) return Value(json.get<double>());
  if (json.is_number()) {
    const bool fits = !json.is_number_unsigned() || json.get<std::uint64_t>() <= INT64_MAX;
    if (!fits) throw Fault(fmt::format("has the integer {}, which is too large", json.dump()));
    return Value(json.get<std::int64_t>());
  }
  int below = 0;
  if (json.is_array()) {
    Sequence list;
    for (const auto& item : json) list.items.push_back(from_json(item, depth + 1));
    for (const Value& item : list.items) below = std::max(below, depth_of(item));
    list.depth = below + 1;
    return Value(std::make_shared<const Sequence>(std::move(list)));
  }
  Dict dict;
  for (const auto& [key, item] : json.items()) {
    dict.items.emplace_back(Text::of_data(key), from_json(item, depth + 1));
    below = std::max(below, depth_of(dict.items.back().second));
  }
  dict.depth = below + 1;
  return Value(std::make_shared<const Dict>(std::move(dict)));
}

bool is_true(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (const auto number = value.real()) return *number != 0;
  if (const Text* text = value.text()) return text->size() > 0;
  if (const Dict* dict = value.dict()) return !dict->items.empty();
  const Sequence* sequence = value.sequence();
  return !sequence || sequence->kind == Sequence::Kind::kIterator || !sequence->items.empty();
}

namespace {

/// The order of two numbers. An integer is never rounded to compare it with a fraction.
std::partial_ordering ordered(const Value& a, const Value& b) {
  if (a.integer() && b.integer()) return *a.integer() <=> *b.integer();
  if (a.integer()) return 0 <=> ordered(b, a);
  if (!b.integer() || std::abs(*a.real()) >= 0x1p63) return *a.real() <=> *b.real();
  if (std::isnan(*a.real())) return std::partial_ordering::unordered;
  const double whole = std::floor(*a.real());
  const auto order = static_cast<std::int64_t>(whole) <=> *b.integer();
  return order != 0 ? order : *a.real() <=> whole;
}

void require_comparable(const Sequence& sequence) {
  if (sequence.kind > Sequence::Kind::kRange) throw Fault("compares what a filter or a dict made");
}

}  // namespace

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.spend_steps();
  if (a.is_number() && b.is_number()) return ordered(a, b) == 0;
  if (const Text* left = a.text(), *right = b.text(); left && right) {
    if (left->size() == right->size()) budget.spend_steps(left->size() / 64);
    return left->bytes == right->bytes;
  }
  if (const Sequence* left = a.sequence(), *right = b.sequence(); left && right) {
    require_comparable(*left);
    return left->kind == right->kind &&
           std::equal(left->items.begin(), left->items.end(), right->items.begin(), right->items.end(),
                      [&](const Value& x, const Value& y) { return equal(x, y, budget); });
  }
  if (const Dict* left = a.dict(), *right = b.dict(); left && right) {
    return left->items.size() == right->items.size() &&
           std::all_of(left->items.begin(), left->items.end(), [&](const auto& item) {
             const Value* other = right->find(item.first, budget);
             return other && equal(item.second, *other, budget);
           });
  }
  if (a.name_space() || b.name_space()) return a.name_space() == b.name_space();
  return (a.is_undefined() && b.is_undefined()) || (a.is_none() && b.is_none());
}

bool less(const Value& a, const Value& b, Budget& budget) {
  budget.spend_steps();
  if (a.is_number() && b.is_number()) return ordered(a, b) < 0;
  if (a.text() && b.text()) {
    budget.spend_steps(std::min(a.text()->size(), b.text()->size()) / 64);
    return a.text()->bytes < b.text()->bytes;
  }
  if (a.sequence() && b.sequence() && a.sequence()->kind == b.sequence()->kind &&
      a.sequence()->kind <= Sequence::Kind::kTuple) {
    const auto &left = a.sequence()->items, &right = b.sequence()->items;
    for (std::size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      if (!equal(left[i], right[i], budget)) return less(left[i], right[i], budget);
    }
    return left.size() < right.size();
  }
  throw Fault(fmt::format("compares {} with {}", a.kind(), b.kind()));
}

bool contains(const Value& container, const Value& value, Budget& budget) {
  if (const Text* text = container.text()) {
    const Text* part = value.text();
    if (!part) throw Fault(fmt::format("looks for {} in a text", value.kind()));
    budget.spend_product(text->size(), part->size());
    return text->bytes.find(part->bytes) != std::string::npos;
  }
  const bool is_view = container.sequence() && container.sequence()->kind == Sequence::Kind::kView;
  if (container.dict() || is_view) require_hashable(value);
  if (const Dict* dict = container.dict()) return dict->find(value, budget) != nullptr;
  const std::vector<Value> all = elements(container, budget);
  return std::any_of(all.begin(), all.end(), [&](const Value& item) { return equal(item, value, budget); });
}

std::vector<Value> elements(const Value& value, Budget& budget) {
  std::vector<Value> all;
  if (value.is_undefined()) return all;
  if (const Sequence* sequence = value.sequence()) {
    budget.spend_bytes(sequence->items.size() * sizeof(Value));
    return sequence->items;
  }
  if (const Dict* dict = value.dict()) {
    budget.spend_bytes(dict->items.size() * sizeof(Value));
    for (const auto& item : dict->items) all.push_back(item.first);
    return all;
  }
  const Text* text = value.text();
  if (text) require_plain(*text, "iterates over");
  if (!text) throw Fault(fmt::format("iterates over {} as if it were a list", value.kind()));
  budget.spend_bytes(text->size() * (sizeof(Value) + sizeof(Text)));
  const std::vector<std::size_t> starts = text->characters();
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) all.emplace_back(text->part(starts[i], starts[i + 1]));
  return all;
}

std::size_t length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const Text* text = value.text()) return text->characters().size() - 1;
  if (const Dict* dict = value.dict()) return dict->items.size();
  const Sequence* sequence = value.sequence();
  if (!sequence || sequence->kind == Sequence::Kind::kIterator) {
    throw Fault(fmt::format("uses the length of {}", sequence ? kIteratorInMessages : value.kind()));
  }
  return sequence->items.size();
}

namespace {

/// Collects bytes within the budget.
class Writer {
 public:
  explicit Writer(Budget& budget) : budget_(budget) {}

  void write(std::string_view bytes) {
    budget_.spend_bytes(bytes.size());
    bytes_ += bytes;
  }
  std::string finish() { return std::move(bytes_); }
  Budget& budget() { return budget_; }

 private:
  Budget& budget_;
  std::string bytes_;
};

/// The shortest digits that read back as the same number, in Python's format.
std::string digits(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", number);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

/// Whether Python's repr() writes the character unescaped. Checks only the larger ranges of characters
/// without a glyph.
bool is_printable(char32_t c) {
  static constexpr std::pair<char32_t, char32_t> kRanges[] = {
      {0x0, 0x1F},      {0x7F, 0xA0},     {0xAD, 0xAD},     {0x600, 0x605},   {0x61C, 0x61C},
      {0x1680, 0x1680}, {0x180E, 0x180E}, {0x2000, 0x200F}, {0x2028, 0x202F}, {0x205F, 0x206F},
      {0x3000, 0x3000}, {0xD800, 0xF8FF}, {0xFEFF, 0xFEFF}, {0xFFF0, 0xFFFB}, {0xE0000, 0x10FFFF}};
  return std::none_of(std::begin(kRanges), std::end(kRanges),
                      [&](const auto& range) { return c >= range.first && c <= range.second; });
}

std::string python_escape(char32_t c) {
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  const auto number = static_cast<std::uint32_t>(c);
  if (c < 0x100) return fmt::format("\\x{:02x}", number);
  return c < 0x10000 ? fmt::format("\\u{:04x}", number) : fmt::format("\\U{:08x}", number);
}

std::string json_escape(char32_t c) {
  static constexpr std::string_view kEscapes = "\"\"\\\\\nn\rr\tt\bb\ff";
  for (std::size_t i = 0; i < kEscapes.size(); i += 2) {
    if (c == static_cast<char32_t>(kEscapes[i])) return {'\\', kEscapes[i + 1]};
  }
  const auto number = static_cast<std::uint32_t>(c);
  if (number < 0x10000) return fmt::format("\\u{:04x}", number);
  return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((number - 0x10000) >> 10), 0xDC00 + (number & 0x3FF));
}

/// `text` in quotation marks; `escape` writes the characters for which `is_escaped` is true.
template <typename IsEscaped, typename Escape>
std::string in_quotes(std::string_view text, char mark, const IsEscaped& is_escaped, const Escape& escape) {
  std::string written(1, mark);
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view character = first_character(rest);
    const char32_t c = code_point(character);
    written += is_escaped(c) ? escape(c) : std::string(character);
    rest.remove_prefix(character.size());
  }
  return written + mark;
}

std::string python_quoted(std::string_view text) {
  const bool has_single = text.find('\'') != text.npos;
  const char mark = has_single && text.find('"') == text.npos ? '"' : '\'';
  return in_quotes(
      text, mark,
      [&](char32_t c) { return c == static_cast<char32_t>(mark) || c == '\\' || !is_printable(c); },
      [&](char32_t c) {
        return c == static_cast<char32_t>(mark) || c == '\\' ? fmt::format("\\{}", utf8(c))
                                                             : python_escape(c);
      });
}

/// Writes a value as Python's repr() does, with texts in quotation marks.
void write_python(Writer& out, const Value& value) {
  out.budget().spend_steps();
  if (value.text()) {
    require_plain(*value.text(), "writes a list with");
    return out.write(python_quoted(value.text()->bytes));
  }
  if (const Sequence* sequence = value.sequence()) {
    using Kind = Sequence::Kind;
    if (sequence->kind != Kind::kList && sequence->kind != Kind::kTuple) {
      throw Fault(fmt::format("writes {}", kIteratorInMessages));
    }
    const bool tuple = sequence->kind == Kind::kTuple;
    out.write(tuple ? "(" : "[");
    for (std::size_t i = 0; i < sequence->items.size(); ++i) {
      if (i > 0) out.write(", ");
      write_python(out, sequence->items[i]);
    }
    return out.write(!tuple ? "]" : sequence->items.size() == 1 ? ",)" : ")");
  }
  if (const Dict* dict = value.dict()) {
    out.write("{");
    for (std::size_t i = 0; i < dict->items.size(); ++i) {
      if (i > 0) out.write(", ");
      write_python(out, dict->items[i].first);
      out.write(": ");
      write_python(out, dict->items[i].second);
    }
    return out.write("}");
  }
  if (value.is_undefined()) return out.write("Undefined");
  out.write(to_text(value, out.budget()).bytes);
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), out_(budget) {}

  std::string run(const Value& value) {
    write(value, 0);
    return out_.finish();
  }

 private:
  void write(const Value& value, int level) {
    out_.budget().spend_steps();
    if (value.text()) return out_.write(quoted(value.text()->bytes));
    if (const Sequence* sequence = value.sequence()) {
      if (sequence->kind > Sequence::Kind::kTuple)
        throw Fault(fmt::format("uses tojson on {}", kIteratorInMessages));
      return write_all('[', ']', sequence->items.size(), level,
                       [&](std::size_t i) { write(sequence->items[i], level + 1); });
    }
    if (const Dict* dict = value.dict()) return write_dict(*dict, level);
    if (value.is_none() || value.is_number()) return out_.write(scalar(value));
    throw Fault(fmt::format("uses tojson on {}", value.kind()));
  }

  void write_dict(const Dict& dict, int level) {
    auto items = dict.items;
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(),
                       [&](const auto& a, const auto& b) { return less(a.first, b.first, out_.budget()); });
    }
    write_all('{', '}', items.size(), level, [&](std::size_t i) {
      const Value& key = items[i].first;
      if (!key.text() && !key.is_none() && !key.is_number())
        throw Fault("uses tojson on a dict with a key that is not a text");
      out_.write(quoted(key.text() ? key.text()->bytes : scalar(key)));
      out_.write(style_.colon);
      write(items[i].second, level + 1);
    });
  }

  template <typename Element>
  void write_all(char open, char close, std::size_t count, int level, const Element& element) {
    out_.write(std::string(1, open));
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) out_.write(style_.comma);
      new_line(level + 1);
      element(i);
    }
    if (count > 0) new_line(level);
    out_.write(std::string(1, close));
  }

  void new_line(int level) {
    if (!style_.indent) return;
    out_.write("\n");
    for (int i = 0; i < level; ++i) out_.write(*style_.indent);
  }

  static std::string scalar(const Value& value) {
    if (value.is_none()) return "null";
    if (const auto* truth = value.as<bool>()) return *truth ? "true" : "false";
    if (const auto number = value.integer()) return std::to_string(*number);
    const double number = *value.real();
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number < 0 ? "-Infinity" : "Infinity";
    return digits(number);
  }

  std::string quoted(std::string_view text) const {
    return in_quotes(
        text, '"',
        [this](char32_t c) {
          return c < 0x20 || c == '"' || c == '\\' || (style_.ensure_ascii && c >= 0x7F);
        },
        json_escape);
  }

  const JsonStyle& style_;
  Writer out_;
};

}  // namespace

Text to_text(const Value& value, Budget& budget) {
  if (value.text()) return *value.text();
  if (value.is_undefined()) return {};
  if (value.is_none()) return Text::of_data("None");
  if (const auto* truth = value.as<bool>()) return Text::of_data(*truth ? "True" : "False");
  if (const auto number = value.integer()) return Text::of_data(std::to_string(*number));
  if (const auto number = value.real()) return Text::of_data(digits(*number));
  if (!value.sequence() && !value.dict())
    throw Fault(fmt::format("writes {}, which has no text", value.kind()));
  Writer out(budget);
  write_python(out, value);
  return Text::of_data(out.finish());
}

Text to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  return Text::of_data(JsonWriter(style, budget).run(value));
}

}  // namespace staircase::jinja
