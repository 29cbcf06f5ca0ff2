#include "common/text/code_points.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "common/text/utf8.h"

namespace staircase {

namespace {

using Kind = RegexPart::Kind;

constexpr char32_t kLastCodePoint = 0x10FFFF;

}  // namespace

CodePoints all_but(CodePoints set) {
  std::ranges::sort(set);
  CodePoints others;
  char32_t next = 0;
  for (const auto& [first, last] : set) {
    if (first > next) others.emplace_back(next, first - 1);
    next = std::max<char32_t>(next, last + 1);
  }
  if (next <= kLastCodePoint) others.emplace_back(next, kLastCodePoint);
  return others;
}

std::optional<char32_t> take_code_point(std::string_view& text) {
  std::size_t length = 1;
  while (length < text.size() && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80) ++length;
  const Utf8Run run = first_utf8_run(text.substr(0, length));
  if (!run.valid || run.length != length) return std::nullopt;
  // The first of n > 1 bytes begins with n + 1 bits that encode n; the other bits belong to the character.
  char32_t c = static_cast<unsigned char>(text[0]) & (length == 1 ? 0x7F : 0xFF >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) c = c << 6 | (static_cast<unsigned char>(text[i]) & 0x3F);
  text.remove_prefix(length);
  return c;
}

int parts_of(const CodePoints& set) {
  int parts = 1;
  for (const auto& [first, last] : set)
    for (const std::vector<ByteRange>& form : utf8_ranges(first, last))
      parts += 1 + static_cast<int>(form.size());
  return parts;
}

RegexPart any_of(const CodePoints& set) {
  RegexPart any{Kind::kChoice};
  for (const auto& [first, last] : set) {
    for (const std::vector<ByteRange>& form : utf8_ranges(first, last)) {
      RegexPart& character = any.parts.emplace_back(RegexPart{Kind::kSequence});
      for (const ByteRange& bytes : form) character.parts.emplace_back(RegexPart{Kind::kByte}).bytes = bytes;
    }
  }
  return any.parts.size() == 1 ? any.parts[0] : any;
}

RegexPart bytes_of(std::string_view text) {
  RegexPart all{Kind::kSequence};
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    all.parts.emplace_back(RegexPart{Kind::kByte}).bytes = {byte, byte};
  }
  return all;
}

RegexPart any_of_in_json(const CodePoints& set) {
  const CodePoints needs_escape{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  CodePoints plain;
  RegexPart any{Kind::kChoice};
  for (const auto& [first, last] : set) {
    char32_t next = first;
    for (const auto& [from, to] : needs_escape) {
      if (from > next && std::min<char32_t>(from - 1, last) >= next)
        plain.emplace_back(next, std::min<char32_t>(from - 1, last));
      for (char32_t c = std::max(from, first); c <= std::min(to, last); ++c) {
        const auto known = std::string_view("\b\f\n\r\t\"\\").find(static_cast<char>(c));
        any.parts.push_back(bytes_of(known == std::string_view::npos
                                         ? fmt::format("\\u{:04x}", static_cast<unsigned>(c))
                                         : std::string{'\\', "bfnrt\"\\"[known]}));
      }
      next = std::max<char32_t>(next, to + 1);
    }
    if (next <= last) plain.emplace_back(next, last);
  }
  if (!plain.empty()) any.parts.push_back(any_of(plain));
  return any;
}

}  // namespace staircase
