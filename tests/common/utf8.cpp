// Valid UTF-8 out of any bytes: the Unicode standard's own examples, and agreement of all ways to cut them.
#include "common/text/utf8.h"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <string_view>

#include "tests/code_point.h"

using namespace staircase;

namespace {

/// `bytes` as valid UTF-8, with a question mark for every U+FFFD.
std::string decoded(std::string_view bytes) {
  const std::string text = to_valid_utf8(bytes);
  std::string shown;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool replaced = text.compare(i, 3, "\uFFFD") == 0;
    shown += replaced ? '?' : text[i];
    if (replaced) i += 2;
  }
  return shown;
}

}  // namespace

TEST_CASE("every Unicode scalar value passes unchanged, and surrogates and what is above do not") {
  int wrong = 0;
  for (unsigned code_point = 0; code_point < 0x110000; ++code_point) {
    const std::string bytes = encoded(code_point);
    const bool surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
    wrong += to_valid_utf8(bytes) != (surrogate ? "\uFFFD\uFFFD\uFFFD" : bytes);
  }
  CHECK(wrong == 0);
  for (unsigned code_point = 0x110000; code_point < 0x140000; code_point += 0x777) {
    wrong += decoded(encoded(code_point)) != "????";
  }
  CHECK(wrong == 0);
}

TEST_CASE("a maximal subpart becomes one replacement character, as in the standard's examples") {
  // Unicode 15, chapter 3.9, tables 3-8 to 3-11.
  CHECK(decoded("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41") == "????????A");
  CHECK(decoded("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41") == "????????A");
  CHECK(decoded("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42") == "?????A??B");
  CHECK(decoded("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41") == "????A");
}

TEST_CASE("invalid bytes decode as Python's bytes.decode(errors='replace') does") {
  // Made with Python 3.11: b'...'.decode('utf-8', 'replace').
  CHECK(decoded("") == "");
  CHECK(decoded("\x80") == "?");
  CHECK(decoded("a\xFFz") == "a?z");
  CHECK(decoded("\xC3") == "?");
  CHECK(decoded("\xC3\xC3\xA9") == "?\xC3\xA9");
  CHECK(decoded("\xE2\x82") == "?");
  CHECK(decoded("\xE2\x82\xE2\x82\xAC") == "?\xE2\x82\xAC");
  CHECK(decoded("\xE0\x9F\xBF") == "???");
  CHECK(decoded("\xF0\x8F\xBF\xBF") == "????");
  CHECK(decoded("\xF0\x9F\x98") == "?");
  CHECK(decoded("\xF0\x9F\x98z") == "?z");
  CHECK(decoded("\xF5\x80\x80\x80") == "????");
  CHECK(decoded("\xF8\x88\x80\x80\x80") == "?????");
  CHECK(decoded(std::string("\0\xC0\x80", 3)) == std::string("\0??", 3));
}

TEST_CASE("an unfinished character waits, and only an unfinished one") {
  std::string bytes = "ab\xF0\x9F\x98";
  CHECK(take_complete_utf8(bytes) == "ab");
  CHECK(bytes == "\xF0\x9F\x98");
  CHECK(take_complete_utf8(bytes) == "");
  bytes += "\x80!";
  CHECK(take_complete_utf8(bytes) == "\xF0\x9F\x98\x80!");
  CHECK(bytes.empty());

  // These can no longer become a character: nothing is gained by waiting.
  for (const char* hopeless : {"\xC0", "\xE0\x80", "\xED\xA0", "\xF4\x90", "\xF5", "\xFF", "\x80"}) {
    bytes = hopeless;
    CHECK(take_complete_utf8(bytes).size() == 3 * std::string_view(hopeless).size());
    CHECK(bytes.empty());
  }
}

TEST_CASE("wherever the bytes are split, the text is the same, and valid") {
  // Leads, continuations and their limits are what decides; random bytes would hardly ever meet them.
  const std::string alphabet =
      "A\x7F\x80\x8F\x90\x9F\xA0\xBF\xC0\xC1\xC2\xDF\xE0\xE1\xEC\xED\xEE\xEF\xF0\xF1\xF3\xF4\xF5\xFF";
  std::mt19937 random(1);
  int wrong = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string all, streamed, waiting;
    for (unsigned length = random() % 12; all.size() < length;) {
      const std::string chunk(1, alphabet[random() % alphabet.size()]);
      all += chunk;
      waiting += chunk;
      if (random() % 2) streamed += take_complete_utf8(waiting);
    }
    streamed += to_valid_utf8(waiting);
    const std::string whole = to_valid_utf8(all);
    wrong += streamed != whole;
    wrong += to_valid_utf8(whole) != whole;  // what came out is valid: it passes unchanged
  }
  CHECK(wrong == 0);
}

TEST_CASE("bytes fall into runs of characters and runs without any") {
  const auto runs = [](std::string_view bytes) {
    std::string shown;
    while (!bytes.empty()) {
      const Utf8Run run = first_utf8_run(bytes);
      REQUIRE(run.length > 0);
      shown += (run.valid ? 'v' : 'x') + std::to_string(run.length) + ' ';
      bytes.remove_prefix(run.length);
    }
    return shown;
  };
  CHECK(runs("a\u00E9\u4E2D\U0001F600") == "v10 ");
  CHECK(runs("\xFF\xC3\xE2\x82\xF0\x9F\x98") == "x7 ");
  CHECK(runs("ab\xC3 \xE2\x82") == "v2 x1 v1 x2 ");
  CHECK(runs("\xED\xA0\x80\u00E9\xC0\x80") == "x3 v2 x2 ");
}
