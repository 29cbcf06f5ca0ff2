#include "common/text/regex_syntax.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "common/base/error.h"
#include "common/base/quoted.h"
#include "common/text/code_points.h"

namespace staircase {

namespace {

using Kind = RegexPart::Kind;

constexpr int kMaxParts = 50'000, kMaxDepth = 100, kNoLimit = RegexPart::kNoLimit;
constexpr std::string_view kDigits = "0123456789";
constexpr const char* kCounts = "a repetition must be {2}, {2,} or {2,5}; write \\{ for the character";

class Parser {
 public:
  explicit Parser(std::string_view pattern) : pattern_(pattern), rest_(pattern) {}

  /// Reads the pattern: for a whole text without `any`, otherwise for a string in JSON.
  RegexPart whole(const RegexPart* any = nullptr) {
    any_ = any;
    RegexPart part = choice();
    if (!rest_.empty()) fail("this ) closes no (; write \\) for the character");
    return part;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    constexpr std::size_t shown = 20;
    const std::string at = rest_.empty() ? "at its end" : "before " + printable(rest_.substr(0, shown));
    throw UsageError("the regular expression cannot be read {}{}: {}", at, rest_.size() > shown ? "..." : "",
                     what);
  }

  bool next_is(std::string_view characters) const {
    return !rest_.empty() && characters.find(rest_[0]) != characters.npos;
  }

  bool take(std::string_view text) {
    const bool is_next = rest_.starts_with(text);
    if (is_next) rest_.remove_prefix(text.size());
    return is_next;
  }

  void count(int parts) {
    made_ += parts;
    if (made_ > kMaxParts) fail("it has more than 50000 parts when all repetitions are written out");
  }

  RegexPart made(Kind kind, std::vector<RegexPart> parts = {}) {
    count(1);
    return {kind, std::move(parts)};
  }

  RegexPart copy_of(const RegexPart& part) {
    RegexPart copy = made(part.kind);
    for (const RegexPart& one : part.parts) copy.parts.push_back(copy_of(one));
    copy.bytes = part.bytes;
    return copy;
  }

  RegexPart choice() {
    RegexPart part = made(Kind::kChoice);
    do part.parts.push_back(sequence());
    while (take("|"));
    return part;
  }

  RegexPart sequence() {
    const auto anything = [&] {
      RegexPart all{Kind::kRepeat, {*any_}};
      all.most = kNoLimit;
      return all;
    };
    const bool may_have_anchors = any_ != nullptr && depth_ == 0;
    RegexPart part = made(Kind::kSequence);
    if (may_have_anchors && !take("^")) part.parts.push_back(anything());
    while (!rest_.empty() && !next_is("|)")) {
      if (may_have_anchors && (rest_ == "$" || rest_.starts_with("$|"))) break;
      part.parts.push_back(repeated());
    }
    if (may_have_anchors && !take("$")) part.parts.push_back(anything());
    return part;
  }

  RegexPart repeated() {
    RegexPart part = atom();
    if (!next_is("*+?{")) return part;
    const auto [least, most] = counts();
    if (any_ != nullptr) take("?");  // as few times as possible: matches the same texts
    if (next_is("*+?{")) fail("a repetition cannot be repeated; put it into ( )");
    if (any_ != nullptr) {
      RegexPart all = made(Kind::kRepeat);
      all.parts.push_back(std::move(part));
      std::tie(all.least, all.most) = std::pair(least, most);
      return all;
    }
    RegexPart all = made(Kind::kSequence), more = made(Kind::kFront);
    const int copies = std::max({least, most, 1});
    for (int i = 1; i <= copies; ++i) {
      RegexPart one = copy_of(part);
      if (most == kNoLimit && i == copies) one = made(Kind::kLoop, {std::move(one)});
      (i <= least ? all : more).parts.push_back(std::move(one));
    }
    if (!more.parts.empty()) all.parts.push_back(std::move(more));
    return all;
  }

  /// The smallest and the largest count; kNoLimit means no upper limit.
  std::pair<int, int> counts() {
    if (take("?")) return {0, 1};
    if (take("*")) return {0, kNoLimit};
    if (take("+")) return {1, kNoLimit};
    take("{");
    const int least = number();
    const int most = !take(",") ? least : next_is("}") ? kNoLimit : number();
    if (!take("}")) fail(kCounts);
    if (most == 0 || (most != kNoLimit && most < least)) fail("the repetition before it allows nothing");
    return {least, most};
  }

  int number() {
    if (!next_is(kDigits)) fail(kCounts);
    int value = 0;
    for (; next_is(kDigits); rest_.remove_prefix(1))
      value = std::min(10 * value + rest_[0] - '0', kMaxParts + 1);
    return value;
  }

  RegexPart atom() {
    if (!take("(")) return characters();
    if (take("?") && !take(":")) fail("of the groups that begin with (?, only (?: is supported");
    if (++depth_ > kMaxDepth) fail("more than 100 groups are nested");
    RegexPart part = choice();
    --depth_;
    if (!take(")")) fail("a ) is missing");
    return part;
  }

  RegexPart characters() {
    if (next_is("*+?{")) fail("there is nothing to repeat; write a \\ before the character");
    if (next_is("^$")) {
      fail(any_ != nullptr
               ? "^ and $ are allowed only at the ends of a pattern or of its alternatives"
               : "a text must match as a whole, so leave out ^ and $; write a \\ before the character");
    }
    CodePoints set;
    if (take("["))
      set = brackets();
    else if (take("."))
      set =
          any_ != nullptr ? all_but({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}) : all_but({{'\n', '\n'}});
    else
      set = element();
    if (set.empty()) fail("no character fits these brackets");
    count(parts_of(set));
    return any_ != nullptr ? any_of_in_json(set) : any_of(set);
  }

  /// Reads a set after its opening bracket.
  CodePoints brackets() {
    const bool is_negated = take("^");
    CodePoints all;
    while (!take("]")) {
      CodePoints one = element();
      if (next_is("-") && !rest_.starts_with("-]")) {
        take("-");
        const CodePoints last = element();
        if (!is_one(one) || !is_one(last) || last[0].first < one[0].first) {
          fail("a range is from one character to a later one, as in [a-z]; write \\- for the character");
        }
        one[0].second = last[0].first;
      }
      all.insert(all.end(), one.begin(), one.end());
    }
    if (all.empty()) fail("these brackets are empty; write \\] for the character");
    return is_negated ? all_but(std::move(all)) : all;
  }

  CodePoints element() {
    if (take("\\")) return escaped();
    const char32_t c = code_point();
    return {{c, c}};
  }

  CodePoints escaped() {
    const CodePoints digits{{'0', '9'}}, word{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    CodePoints space{{'\t', '\r'}, {' ', ' '}};
    if (any_ != nullptr) {
      space.insert(space.end(), {{0xA0, 0xA0},
                                 {0x1680, 0x1680},
                                 {0x2000, 0x200A},
                                 {0x2028, 0x2029},
                                 {0x202F, 0x202F},
                                 {0x205F, 0x205F},
                                 {0x3000, 0x3000},
                                 {0xFEFF, 0xFEFF}});
    }
    const char32_t c = code_point();
    switch (c) {
      case 'd':
        return digits;
      case 'D':
        return all_but(digits);
      case 'w':
        return word;
      case 'W':
        return all_but(word);
      case 's':
        return space;
      case 'S':
        return all_but(space);
      case 'n':
        return {{'\n', '\n'}};
      case 'r':
        return {{'\r', '\r'}};
      case 't':
        return {{'\t', '\t'}};
      default:
        break;
    }
    if (any_ != nullptr) {
      if (c == 'f') return {{'\f', '\f'}};
      if (c == 'v') return {{'\v', '\v'}};
      if (c == 'x' || c == 'u') {
        const char32_t code = hexadecimal(c == 'x' ? 2 : 4);
        return {{code, code}};
      }
    }
    // A backslash before a letter or digit never means the character itself.
    if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) {
      fail("of the letters and digits after a backslash, only d, D, w, W, s, S, n, r and t are supported");
    }
    return {{c, c}};
  }

  char32_t hexadecimal(int digits) {
    char32_t code = 0;
    for (; digits > 0; --digits, rest_.remove_prefix(1)) {
      if (!next_is("0123456789abcdefABCDEF")) fail("\\x41 has two hexadecimal digits, and \\u00e9 four");
      const char c = rest_[0];
      code = code * 16 + static_cast<char32_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (code >= 0xD800 && code <= 0xDFFF) fail("half a surrogate pair is not a character");
    return code;
  }

  char32_t code_point() {
    if (rest_.empty()) fail("it ends too early");
    const std::optional<char32_t> c = take_code_point(rest_);
    if (!c) fail("it must be valid UTF-8");
    return *c;
  }

  std::string_view pattern_, rest_;  // the whole pattern, and the part that has not been read
  const RegexPart* any_ = nullptr;
  int depth_ = 0, made_ = 0;
};

}  // namespace

RegexPart parse_regex(std::string_view pattern) {
  return Parser(pattern).whole();
}

RegexPart parse_json_pattern(std::string_view pattern, const RegexPart& any) {
  return Parser(pattern).whole(&any);
}

}  // namespace staircase
