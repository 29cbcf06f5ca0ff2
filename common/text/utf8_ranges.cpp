// Unicode standard, chapter 3.9, tables 3-6 and 3-7: where forms become one byte longer, and which bytes they
// can have.
#include "common/text/utf8_ranges.h"

#include <algorithm>

namespace staircase {

namespace {

std::vector<unsigned char> form(char32_t c) {
  const auto byte = [](char32_t value) { return static_cast<unsigned char>(value); };
  const auto later = [&](int shift) { return byte(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xC0 | c >> 6), later(0)};
  if (c < 0x10000) return {byte(0xE0 | c >> 12), later(6), later(0)};
  return {byte(0xF0 | c >> 18), later(12), later(6), later(0)};
}

void add(char32_t first, char32_t last, std::vector<std::vector<ByteRange>>& all) {
  if (first > last) return;
  const auto split_after = [&](char32_t end) {
    add(first, end, all);
    add(end + 1, last, all);
  };
  for (const char32_t end : {U'\x7F', U'\x7FF', U'\xFFFF'}) {
    if (first <= end && end < last) return split_after(end);
  }
  // One range per byte is enough only if all bytes after the first one that differs take every possible
  // value.
  for (int bits = 6; bits <= 18; bits += 6) {
    const char32_t low = (1u << bits) - 1;
    if (first >> bits == last >> bits) break;
    if ((first & low) != 0) return split_after(first | low);
    if ((last & low) != low) return split_after((last & ~low) - 1);
  }
  const std::vector<unsigned char> from = form(first), to = form(last);
  std::vector<ByteRange>& sequence = all.emplace_back();
  for (std::size_t i = 0; i < from.size(); ++i) sequence.push_back({from[i], to[i]});
}

}  // namespace

std::vector<std::vector<ByteRange>> utf8_ranges(char32_t first, char32_t last) {
  constexpr char32_t before_surrogates = 0xD7FF, after_surrogates = 0xE000;
  std::vector<std::vector<ByteRange>> all;
  add(first, std::min(last, before_surrogates), all);
  add(std::max(first, after_surrogates), last, all);
  return all;
}

}  // namespace staircase
