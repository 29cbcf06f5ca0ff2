#include "common/text/grammar_syntax.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/text/code_points.h"

namespace staircase {

namespace {

using Kind = RegexPart::Kind;

constexpr int kMaxParts = 50'000, kMaxCount = 50'000, kMaxDepth = 100;
constexpr std::string_view kDigits = "0123456789", kHexDigits = "0123456789abcdefABCDEF";
constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
constexpr const char* kCounts = "a repetition must be {2}, {2,} or {2,5}";

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text), rest_(text) { number_of("root", text); }

  GrammarRules whole() {
    for (space(true); !rest_.empty(); space(true)) rule();
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      if (is_defined_[i]) continue;
      rest_ = first_use_[i];
      fail(i == 0 ? "there is no rule root, which describes whole texts"
                  : "there is no rule " + rules_[i].name);
    }
    refuse_left_recursion(rules_);
    if (!keep_finite(rules_))
      throw UsageError("no finite text matches the grammar: all its texts go on for ever");
    return std::move(rules_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    const std::string_view read = text_.substr(0, text_.size() - rest_.size());
    const std::string_view line = read.substr(read.rfind('\n') + 1);
    const auto column = std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80; }) + 1;
    throw UsageError("the grammar cannot be read at line {}, column {}: {}",
                     std::ranges::count(read, '\n') + 1, column, what);
  }

  bool next_is(std::string_view characters) const {
    return !rest_.empty() && characters.find(rest_[0]) != characters.npos;
  }

  bool take(std::string_view text) {
    const bool is_next = rest_.starts_with(text);
    if (is_next) rest_.remove_prefix(text.size());
    return is_next;
  }

  /// Skips blanks and comments, and the ends of lines if they do not end the rule.
  void space(bool with_lines) {
    while (next_is(with_lines ? " \t#\r\n" : " \t#")) {
      if (next_is("#"))
        rest_.remove_prefix(std::min(rest_.find('\n'), rest_.size()));
      else
        rest_.remove_prefix(1);
    }
  }

  void count(int parts) {
    made_ += parts;
    if (made_ > kMaxParts) fail("it has more than 50000 parts");
  }

  RegexPart made(Kind kind) {
    count(1);
    return {kind};
  }

  /// The number of a rule, which may be defined later. `start` is the text from the rule's first use on.
  int number_of(const std::string& name, std::string_view start) {
    const auto [known, is_new] = numbers_.try_emplace(name, static_cast<int>(rules_.size()));
    if (is_new) {
      rules_.push_back({name, {Kind::kSequence}});
      is_defined_.push_back(false);
      first_use_.push_back(start);
    }
    return known->second;
  }

  std::string name() {
    std::size_t length = 0;
    while (length < rest_.size() && (rest_[length] == '-' || kLetters.find(rest_[length]) != kLetters.npos ||
                                     kDigits.find(rest_[length]) != kDigits.npos))
      ++length;
    const std::string name(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return name;
  }

  void rule() {
    if (!next_is(kLetters)) fail("a rule begins with its name, as in root ::= \"a\"");
    const std::string_view start = rest_;
    const std::string rule = name();
    const int number = number_of(rule, start);
    if (is_defined_[number]) {
      rest_ = start;
      fail("the rule " + rule + " is defined for the second time");
    }
    is_defined_[number] = true;
    space(false);
    if (!take("::=")) fail("expected ::= after the name of a rule");
    RegexPart part = choice(false);
    if (!rest_.empty() && !next_is("\r\n")) fail("this ) closes no (; write \")\" for the character");
    rules_[number].part = std::move(part);
  }

  RegexPart choice(bool is_group) {
    RegexPart part = made(Kind::kChoice);
    do {
      space(true);
      part.parts.push_back(sequence(is_group));
    } while (take("|"));
    return part;
  }

  RegexPart sequence(bool is_group) {
    RegexPart part = made(Kind::kSequence);
    for (; !rest_.empty() && !next_is("|)\r\n"); space(is_group)) part.parts.push_back(repeated());
    return part;
  }

  RegexPart repeated() {
    RegexPart part = atom();
    space(false);
    if (!next_is("*+?{")) return part;
    RegexPart all = made(Kind::kRepeat);
    std::tie(all.least, all.most) = counts();
    space(false);
    if (next_is("*+?{")) fail("a repetition cannot be repeated; put it into ( )");
    all.parts.push_back(std::move(part));
    return all;
  }

  /// The smallest and the largest count; kNoLimit means no upper limit.
  std::pair<int, int> counts() {
    if (take("?")) return {0, 1};
    if (take("*")) return {0, RegexPart::kNoLimit};
    if (take("+")) return {1, RegexPart::kNoLimit};
    take("{");
    const int least = number();
    const int most = !take(",") ? least : next_is("}") ? RegexPart::kNoLimit : number();
    if (!take("}")) fail(kCounts);
    if (most == 0 || (most != RegexPart::kNoLimit && most < least))
      fail("the repetition before it allows nothing");
    return {least, most};
  }

  int number() {
    if (!next_is(kDigits)) fail(kCounts);
    int value = 0;
    for (; next_is(kDigits); rest_.remove_prefix(1)) {
      value = 10 * value + rest_[0] - '0';
      if (value > kMaxCount) fail("a count is at most 50000");
    }
    return value;
  }

  RegexPart atom() {
    if (take("\"")) return literal();
    if (take("[")) return characters(brackets());
    if (take(".")) return characters(all_but({}));
    if (next_is(kLetters)) {
      RegexPart part = made(Kind::kRule);
      const std::string_view start = rest_;
      part.rule = number_of(name(), start);
      return part;
    }
    if (!take("(")) fail("expected a text in quotes, a set in brackets, a rule, a group or a dot");
    if (++depth_ > kMaxDepth) fail("more than 100 groups are nested");
    RegexPart part = choice(true);
    --depth_;
    if (!take(")")) fail("a ) is missing");
    return part;
  }

  RegexPart literal() {
    RegexPart part = made(Kind::kSequence);
    while (!take("\"")) {
      if (rest_.empty() || next_is("\r\n")) fail("a \" is missing; write \\n for the end of a line");
      const char32_t c = character();
      part.parts.push_back(characters({{c, c}}));
    }
    return part;
  }

  RegexPart characters(const CodePoints& set) {
    if (set.empty()) fail("no character fits these brackets");
    count(parts_of(set));
    return any_of(set);
  }

  /// Reads a set after its opening bracket.
  CodePoints brackets() {
    const bool is_negated = take("^");
    CodePoints all;
    while (!take("]")) {
      if (rest_.empty() || next_is("\r\n")) fail("a ] is missing; write \\n for the end of a line");
      const char32_t first = character();
      char32_t last = first;
      if (next_is("-") && !rest_.starts_with("-]")) {
        take("-");
        if (rest_.empty() || next_is("\r\n")) fail("a ] is missing; write \\n for the end of a line");
        last = character();
        if (last < first) fail("a range is from one character to a later one, as in [a-z]");
      }
      all.emplace_back(first, last);
    }
    if (all.empty()) fail("these brackets are empty; write \\] for the character");
    return is_negated ? all_but(std::move(all)) : all;
  }

  char32_t character() {
    if (take("\\")) return escaped();
    const std::optional<char32_t> c = take_code_point(rest_);
    if (!c) fail("it must be valid UTF-8");
    return *c;
  }

  char32_t escaped() {
    static const std::map<char, char32_t> known{{'n', '\n'}, {'r', '\r'}, {'t', '\t'}, {'"', '"'},
                                                {'[', '['},  {']', ']'},  {'-', '-'},  {'\\', '\\'}};
    static const std::map<char, int> digits{{'x', 2}, {'u', 4}, {'U', 8}};
    const char kind = rest_.empty() ? '\0' : rest_[0];
    if (const auto found = known.find(kind); found != known.end()) {
      rest_.remove_prefix(1);
      return found->second;
    }
    const auto found = digits.find(kind);
    if (found == digits.end())
      fail("expected after a backslash: n, r, t, x41, u00e9, U0001f98a, or one of \" \\ [ ] -");
    rest_.remove_prefix(1);
    std::uint32_t code = 0;
    for (int i = 0; i < found->second; ++i, rest_.remove_prefix(1)) {
      if (!next_is(kHexDigits)) fail(fmt::format("\\{} has {} hexadecimal digits", kind, found->second));
      const auto digit = static_cast<std::uint32_t>(kHexDigits.find(rest_[0]));
      code = code * 16 + (digit < 16 ? digit : digit - 6);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) fail("the code before it is not a character");
    return code;
  }

  std::string_view text_, rest_;  // the whole grammar, and the part that has not been read
  GrammarRules rules_;
  std::map<std::string, int> numbers_;
  std::vector<bool> is_defined_;
  std::vector<std::string_view> first_use_;  // with all the text after it
  int depth_ = 0, made_ = 0;
};

}  // namespace

GrammarRules parse_grammar(std::string_view text) {
  return Reader(text).whole();
}

GrammarRules read_grammar(const std::string& file) {
  return file.empty() ? GrammarRules() : parse_grammar(read_file_or_pipe(file));
}

}  // namespace staircase
