#include "common/text/jinja/lexer.h"

#include <algorithm>
#include <array>

#include "common/base/error.h"
#include "common/base/quoted.h"
#include "common/text/jinja/text.h"
#include "common/text/utf8.h"

namespace staircase::jinja {

namespace {

using Kind = Token::Kind;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_';
}

/// Converts all newlines to one kind, and removes one at the end.
std::string normalized(std::string_view source) {
  std::string text;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    text += source[i] == '\r' ? '\n' : source[i];
  }
  if (text.ends_with('\n')) text.pop_back();
  return to_valid_utf8(text);
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalized(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const std::size_t tag = find_tag();
      text_before(tag);
      if (tag == source_.size()) break;
      const char sign = source_[tag + 1];
      move_to(std::min(tag + (sign_at(tag + 2) ? 3 : 2), source_.size()));
      if (sign == '#') {
        skip_comment();
      } else {
        inside_of_tag(sign == '%');
      }
    }
    push(Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::size_t find_tag() const {
    for (std::size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] == '{' && (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#')) {
        return i;
      }
    }
    return source_.size();
  }

  /// The "-" or "+" at `at`, or 0.
  char sign_at(std::size_t at) const {
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : '\0';
  }

  void text_before(std::size_t tag) {
    std::string_view text = std::string_view(source_).substr(at_, tag - at_);
    if (tag < source_.size()) {
      const char sign = sign_at(tag + 2);
      if (sign == '-') {
        text.remove_suffix(spaces_at_back(text));
      } else if (sign != '+' && source_[tag + 1] != '{') {
        const std::size_t line = text.rfind('\n') + 1;  // npos + 1 is 0
        const bool starts_line = line > 0 || at_ == 0 || source_[at_ - 1] == '\n';
        if (starts_line && line + spaces_at_back(text) >= text.size()) text = text.substr(0, line);
      }
    }
    if (!text.empty()) push(Kind::kText, std::string(text));
    move_to(tag);
  }

  void skip_comment() {
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail("begins a comment that does not end");
    const char sign = end > at_ ? sign_at(end - 1) : '\0';
    move_to(end + 2);
    after_tag(sign, true);
  }

  void after_tag(char sign, bool trims_newline) {
    if (sign == '-') {
      move_to(at_ + spaces_in_front(std::string_view(source_).substr(at_)));
    } else if (sign != '+' && trims_newline && at_ < source_.size() && source_[at_] == '\n') {
      move_to(at_ + 1);
    }
  }

  void inside_of_tag(bool block) {
    push(block ? Kind::kBlockBegin : Kind::kOutputBegin, "");
    const char* const end = block ? "%}" : "}}";
    std::string open;  // open brackets
    while (true) {
      move_to(at_ + spaces_in_front(std::string_view(source_).substr(at_)));
      if (at_ >= source_.size()) fail(fmt::format("begins a tag without its {}", end));
      const char sign = sign_at(at_);
      const bool signed_end = sign && (block || sign == '-') && source_.compare(at_ + 1, 2, end) == 0;
      if (open.empty() && (signed_end || source_.compare(at_, 2, end) == 0)) {
        move_to(at_ + (signed_end ? 3 : 2));
        push(block ? Kind::kBlockEnd : Kind::kOutputEnd, "");
        return after_tag(signed_end ? sign : '\0', block);
      }
      next_token(open);
    }
  }

  void next_token(std::string& open) {
    const char c = source_[at_];
    if (is_digit(c)) return number();
    if (is_word(c)) return push_to(Kind::kName, word_end(at_));
    if (c == '"' || c == '\'') return string();
    for (const std::string_view pair : {"==", "!=", ">=", "<=", "//", "**"}) {
      if (source_.compare(at_, 2, pair) == 0) return push_to(Kind::kOperator, at_ + 2);
    }
    if (std::string_view("+-*/%~<>=()[]{}.,:|").find(c) == std::string_view::npos) {
      fail(fmt::format("has {} in a tag", quoted(std::string(first_character(source_.substr(at_, 4))))));
    }
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) fail(fmt::format("has a \"{}\" that closes nothing", c));
      open.pop_back();
    }
    push_to(Kind::kOperator, at_ + 1);
  }

  std::size_t word_end(std::size_t at) const {
    while (at < source_.size() && is_word(source_[at])) ++at;
    return at;
  }

  std::size_t digits_end(std::size_t at) const {
    while (at < source_.size() && is_digit(source_[at])) ++at;
    return at;
  }

  bool digit_at(std::size_t at) const { return at < source_.size() && is_digit(source_[at]); }

  void number() {
    std::size_t end = digits_end(at_);
    Kind kind = Kind::kInteger;
    if (end < source_.size() && source_[end] == '.' && digit_at(end + 1)) {
      end = digits_end(end + 1);
      kind = Kind::kFloat;
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const std::size_t digits = end + (sign_at(end + 1) ? 2 : 1);
      if (digit_at(digits)) {
        end = digits_end(digits);
        kind = Kind::kFloat;
      }
    }
    const std::string_view digits = std::string_view(source_).substr(at_, end - at_);
    if (kind == Kind::kInteger && digits[0] == '0' && digits.find_first_not_of('0') != digits.npos) {
      fail(fmt::format("has the integer {}, which begins with a 0", quoted(std::string(digits), 40)));
    }
    push_to(kind, end);
  }

  /// Reads a string literal with Python's escapes.
  void string() {
    std::string text;
    std::size_t i = at_ + 1;
    for (; i < source_.size() && source_[i] != source_[at_]; ++i) {
      if (source_[i] != '\\' || i + 1 == source_.size()) {
        text += source_[i];
        continue;
      }
      static constexpr std::string_view kEscapes = "\\\\''\"\"n\nt\tr\rb\bf\fa\av\v";
      const char c = source_[++i];
      std::size_t pair = 0;
      while (pair < kEscapes.size() && kEscapes[pair] != c) pair += 2;
      if (pair < kEscapes.size()) {
        text += kEscapes[pair + 1];
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        const std::string number = source_.substr(i + 1, digits);
        if (number.size() < digits || number.find_first_not_of("0123456789abcdefABCDEF") != number.npos) {
          fail(fmt::format("has a string with a broken \\{}", c));
        }
        const auto code = static_cast<char32_t>(std::stoul(number, nullptr, 16));
        if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
          fail(fmt::format("has a string with \\{}{}, which is not a character", c, number));
        }
        text += utf8(code);
        i += digits;
      } else if (is_digit(c) || c == 'N' || static_cast<unsigned char>(c) >= 0x80) {
        fail(fmt::format("has a string with \\{}, which is not known here",
                         first_character(std::string_view(source_).substr(i))));
      } else if (c != '\n') {  // a backslash at the end of a line continues the string
        text.append({'\\', c});
      }
    }
    if (i >= source_.size()) fail("begins a string that does not end");
    push(Kind::kString, std::move(text));
    move_to(i + 1);
  }

  void push(Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void push_to(Kind kind, std::size_t end) {
    push(kind, source_.substr(at_, end - at_));
    move_to(end);
  }

  void move_to(std::size_t at) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
    at_ = at;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error("the template's line {} {}", line_, what);
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace staircase::jinja
