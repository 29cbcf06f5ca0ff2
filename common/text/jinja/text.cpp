#include "common/text/jinja/text.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>

#if STAIRCASE_UTF8PROC
#include <utf8proc.h>
#endif

namespace staircase::jinja {

namespace {

bool begins_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}

bool is_space(std::string_view character) {
  const char32_t c = code_point(character);
  return (c >= 0x9 && c <= 0xD) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

template <typename Predicate>
std::size_t count_in_front(std::string_view text, const Predicate& counts) {
  std::size_t length = 0;
  while (length < text.size() && counts(first_character(text.substr(length)))) {
    length += first_character(text.substr(length)).size();
  }
  return length;
}

template <typename Predicate>
std::size_t count_at_back(std::string_view text, const Predicate& counts) {
  std::size_t rest = text.size();
  while (rest > 0 && counts(last_character(text.substr(0, rest)))) {
    rest -= last_character(text.substr(0, rest)).size();
  }
  return text.size() - rest;
}

template <typename Map>
std::string each_character(std::string_view text, const Map& map) {
  std::string mapped;
  while (!text.empty()) {
    const std::string_view character = first_character(text);
    mapped += utf8(map(code_point(character)));
    text.remove_prefix(character.size());
  }
  return mapped;
}

}  // namespace

Text Text::of_template(std::string bytes) {
  const std::size_t size = bytes.size();
  return {std::move(bytes), std::string(size, kTemplate)};
}

Text Text::of_data(std::string bytes) {
  const std::size_t size = bytes.size();
  return {std::move(bytes), std::string(size, kData)};
}

Text Text::mixed(std::string bytes, const std::vector<const Text*>& sources) {
  const bool own =
      std::all_of(sources.begin(), sources.end(), [](auto* text) { return text->is_of_template(); });
  return own ? of_template(std::move(bytes)) : of_data(std::move(bytes));
}

Text Text::part(std::size_t begin, std::size_t end) const {
  return {bytes.substr(begin, end - begin), origins.substr(begin, end - begin), is_html};
}

void Text::append(const Text& other) {
  bytes += other.bytes;
  origins += other.origins;
}

std::vector<std::size_t> Text::characters() const {
  std::vector<std::size_t> starts;
  for (std::size_t i = 0; i < size(); ++i) {
    if (i == 0 || begins_character(bytes[i])) starts.push_back(i);
  }
  starts.push_back(size());
  return starts;
}

std::size_t spaces_in_front(std::string_view text) {
  return count_in_front(text, is_space);
}

std::size_t spaces_at_back(std::string_view text) {
  return count_at_back(text, is_space);
}

std::size_t span_in_front(std::string_view text, std::string_view set) {
  return count_in_front(text, [&](auto character) { return set.find(character) != set.npos; });
}

std::size_t span_at_back(std::string_view text, std::string_view set) {
  return count_at_back(text, [&](auto character) { return set.find(character) != set.npos; });
}

std::string_view first_character(std::string_view text) {
  std::size_t length = text.empty() ? 0 : 1;
  while (length < text.size() && !begins_character(text[length])) ++length;
  return text.substr(0, length);
}

std::string_view last_character(std::string_view text) {
  std::size_t begin = text.empty() ? 0 : text.size() - 1;
  while (begin > 0 && !begins_character(text[begin])) --begin;
  return text.substr(begin);
}

char32_t code_point(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  switch (character.size()) {
    case 1:
      return byte(0);
    case 2:
      return static_cast<char32_t>((byte(0) & 0x1F) << 6 | (byte(1) & 0x3F));
    case 3:
      return static_cast<char32_t>((byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F));
    case 4:
      return static_cast<char32_t>((byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 |
                                   (byte(3) & 0x3F));
    default:
      return 0xFFFD;
  }
}

std::string utf8(char32_t c) {
  const auto byte = [](char32_t bits) { return static_cast<char>(bits); };
  if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) c = 0xFFFD;
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xC0 | c >> 6), byte(0x80 | (c & 0x3F))};
  if (c < 0x10000) return {byte(0xE0 | c >> 12), byte(0x80 | (c >> 6 & 0x3F)), byte(0x80 | (c & 0x3F))};
  return {byte(0xF0 | c >> 18), byte(0x80 | (c >> 12 & 0x3F)), byte(0x80 | (c >> 6 & 0x3F)),
          byte(0x80 | (c & 0x3F))};
}

std::optional<double> decimal(std::string_view digits) {
  // What strtod accepts in addition: leading blanks and a +, and hexadecimal digits.
  if (digits.empty() || digits[0] == '+' || spaces_in_front(digits) > 0) return {};
  if (digits.find_first_of("xX") != digits.npos) return {};
  const std::string text(digits);
  char* end = nullptr;
  errno = 0;
  const double number = std::strtod(text.c_str(), &end);
  if (end != text.c_str() + text.size()) return {};
  if (errno == ERANGE && (number == 0 || std::isinf(number))) return {};
  return number;
}

#if STAIRCASE_UTF8PROC

// Letter by letter: "ß" stays, while Python's upper() makes two letters of it.
std::string to_upper(std::string_view text) {
  return each_character(text, [](char32_t c) {
    return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
  });
}

std::string to_lower(std::string_view text) {
  return each_character(text, [](char32_t c) {
    return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
  });
}

#else

std::string to_upper(std::string_view text) {
  return each_character(text, [](char32_t c) { return c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c; });
}

std::string to_lower(std::string_view text) {
  return each_character(text, [](char32_t c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; });
}

#endif

}  // namespace staircase::jinja
