// Every code point, in ranges of every kind.
#include "common/text/utf8_ranges.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <random>
#include <set>
#include <string>

#include "tests/code_point.h"

using namespace staircase;

namespace {

bool fits(const std::string& bytes, const std::vector<ByteRange>& sequence) {
  if (bytes.size() != sequence.size()) return false;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto byte = static_cast<unsigned char>(bytes[i]);
    if (byte < sequence[i].first || byte > sequence[i].last) return false;
  }
  return true;
}

/// In how many of the sequences the character is.
int found(char32_t c, const std::vector<std::vector<ByteRange>>& all) {
  int count = 0;
  for (const auto& sequence : all) count += fits(encoded(c), sequence);
  return count;
}

/// How many texts the sequences describe.
long size_of(const std::vector<std::vector<ByteRange>>& all) {
  long sum = 0;
  for (const auto& sequence : all) {
    long product = 1;
    for (const ByteRange range : sequence) product *= range.last - range.first + 1;
    sum += product;
  }
  return sum;
}

}  // namespace

TEST_CASE("a range has the forms of its characters, each once, and no other bytes") {
  std::mt19937 random(1);
  std::vector<std::pair<char32_t, char32_t>> ranges{{0, 0x10FFFF},   {'a', 'z'},     {0xE9, 0xE9},
                                                    {0x7F, 0x80},    {0x7FF, 0x800}, {0xFFFF, 0x10000},
                                                    {0xD7FF, 0xE000}};
  for (int run = 0; run < 200; ++run) {
    const char32_t limit = 1u << (7 + random() % 14);
    const char32_t a = random() % limit, b = random() % limit;
    ranges.emplace_back(std::min<char32_t>(std::min(a, b), 0x10FFFF),
                        std::min<char32_t>(std::max(a, b), 0x10FFFF));
  }
  for (const auto& range : ranges) {
    const char32_t first = range.first, last = range.second;
    CAPTURE(fmt::format("{:X} {:X}", static_cast<unsigned>(first), static_cast<unsigned>(last)));
    const auto all = utf8_ranges(first, last);
    long characters = 0;
    for (char32_t c = first; c <= last; ++c) characters += c < 0xD800 || c > 0xDFFF;
    CHECK(size_of(all) == characters);
    // Of as many texts as there are characters, each character that is found once is all there is to find.
    for (char32_t c = first; c <= last; c += 1 + (last - first) / 300) {
      CHECK(found(c, all) == (c < 0xD800 || c > 0xDFFF ? 1 : 0));
    }
    for (const char32_t c : {first - 1, last + 1}) {
      if (c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF)) CHECK(found(c, all) == 0);
    }
  }
  CHECK(utf8_ranges(0, 0x10FFFF).size() == 9);
  CHECK(utf8_ranges(0xD800, 0xDFFF).empty());
}
