#include "common/base/quoted.h"

#include <fmt/format.h>

#include <cctype>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

namespace staircase {
namespace {

using nlohmann::json;

/// Whether the locale supports more than ASCII. If none is set, most terminals do.
bool has_utf8() {
  for (const char* const name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::string letters;  // lower-case, without hyphens
    for (const char* c = value; *c != '\0'; ++c) {
      if (*c != '-') letters += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
    }
    return letters.find("utf8") != letters.npos;
  }
  return true;
}

/// Replaces the characters that programs draw with by ASCII. The eighths of a bar disappear: they are less
/// than one character.
std::string in_ascii(std::string text) {
  static constexpr std::pair<std::string_view, std::string_view> kSigns[] = {
      {"█", "#"}, {"▉", ""},  {"▊", ""},  {"▋", ""},  {"▌", ""},  {"▍", ""}, {"▎", ""},
      {"▏", ""},  {"├", "|"}, {"│", "|"}, {"─", "-"}, {"×", "x"}, {"■", "="}};
  for (const auto& [sign, plain] : kSigns) {
    for (std::size_t at = 0; (at = text.find(sign, at)) != text.npos; at += plain.size()) {
      text.replace(at, sign.size(), plain);
    }
  }
  return text;
}

}  // namespace

std::string in_json(std::string_view text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string printable(std::string_view bytes, bool has_lines) {
  std::string text = json::parse(in_json(bytes));
  if (!has_utf8()) text = in_ascii(std::move(text));
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const unsigned next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (byte == '\n' && !has_lines) {
      result += "\\n";
    } else if ((byte < ' ' && byte != '\n') || byte == 0x7f) {
      result += fmt::format("\\u{:04x}", byte);
    } else if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {  // C1 controls, U+0080 to U+009F
      result += fmt::format("\\u{:04x}", next);
      ++i;
    } else {
      result += text[i];
    }
  }
  return result;
}

std::string quoted(const std::string& text, std::size_t longest) {
  std::size_t end = text.size();
  if (end > longest) {
    end = longest;
    while (end > 0 && (text[end] & 0xc0) == 0x80) --end;  // never splits a character
  }
  std::string shown = text.substr(0, end);
  if (end < text.size()) shown += "...";
  // JSON escapes only the first 32 characters.
  return printable(in_json(shown));
}

std::string typed(std::string_view text) {
  constexpr std::size_t kLongestWord = 255, kLongestQuote = 80;
  const std::string word(text);
  const bool is_short = !word.empty() && word.size() <= kLongestWord && word.find(' ') == word.npos;
  return is_short && quoted(word) == '"' + word + '"' ? word : quoted(word, kLongestQuote);
}

}  // namespace staircase
