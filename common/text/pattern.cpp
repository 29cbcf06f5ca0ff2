#include "common/text/pattern.h"

#include "common/base/error.h"

namespace staircase {

namespace {

// PCRE2 still counts U+180E as white space, although Unicode no longer does (6.3), and has fewer word
// characters.
constexpr std::string_view kSpace = R"(\t-\r\x{85}\p{Z})";
constexpr std::string_view kWord = R"(\p{L}\p{M}\p{N}\p{Pc})";

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/// Translates an escape sequence with the letter `kind` after the backslash.
std::string translate_escape(char kind, bool in_class) {
  const auto one_of = [&](std::string_view set) {
    return in_class ? std::string(set) : fmt::format("[{}]", set);
  };
  if (kind == 's') return one_of(kSpace);
  if (kind == 'w') return one_of(kWord);
  if (!in_class && kind == 'S') return fmt::format("[^{}]", kSpace);
  if (!in_class && kind == 'W') return fmt::format("[^{}]", kWord);
  const bool same =
      !is_letter_or_digit(kind) || std::string_view("dpPrntfaex").find(kind) != std::string_view::npos;
  if (!same) throw Error("\\{} {}is not understood", kind, in_class ? "in a class " : "");
  return {'\\', kind};
}

}  // namespace

std::string to_pcre2(std::string_view pattern) {
  std::string translated;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const auto next_is = [&](std::string_view any) {
      return i + 1 < pattern.size() && any.find(pattern[i + 1]) != any.npos;
    };
    if (c == '\\') {
      if (i + 1 == pattern.size()) throw Error("it ends in a backslash");
      translated += translate_escape(pattern[++i], in_class);
      continue;
    }
    if (in_class) {
      if (c == '[' || (c == '&' && next_is("&"))) throw Error("a class within a class is not understood");
      in_class = c != ']';
    } else if (c == '[') {
      in_class = true;
      if (next_is("^")) translated += pattern[i++];
      // In Oniguruma, a bracket that follows immediately belongs to the class, as it does in PCRE2.
      if (next_is("]")) throw Error("an empty class is not understood");
    } else if (c == '^' || c == '$') {
      throw Error("{} is not understood", c);
    } else if (c == '(' && next_is("*")) {
      throw Error("(* is not understood");
    } else if (c == '(' && next_is("?") &&
               (i + 2 == pattern.size() ||
                std::string_view(":=!<>i").find(pattern[i + 2]) == std::string_view::npos)) {
      throw Error("(?{} is not understood", pattern.substr(std::min(i + 2, pattern.size()), 1));
    }
    translated += pattern[i];
  }
  return translated;
}

}  // namespace staircase
