// GPT-2's pattern, rule by rule, and what becomes of bytes that it cannot see.
#include "common/text/pre_tokenizer.h"

#include <doctest/doctest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/code_point.h"
#include "tests/error_message.h"

using namespace staircase;

namespace {

std::vector<std::string> split(const std::string& text) {
  static const PreTokenizer pre_tokenizer({gpt2_cut()});
  const auto views = pre_tokenizer.split(text);
  return {views.begin(), views.end()};
}

using Pieces = std::vector<std::string>;

}  // namespace

TEST_CASE("words, numbers and punctuation are pieces, each with the one space before it") {
  CHECK(split("") == Pieces{});
  CHECK(split("Once upon a time, 42 cats!") ==
        Pieces{"Once", " upon", " a", " time", ",", " 42", " cats", "!"});
  CHECK(split("x86_64 \u00E9t\u00E9 \u4E2D\u6587\u0663\u00BD") ==
        Pieces{"x", "86", "_", "64", " \u00E9t\u00E9", " \u4E2D\u6587", "\u0663\u00BD"});
}

TEST_CASE("contractions are pieces in lower case only") {
  CHECK(split("it's we'll I'M'd") == Pieces{"it", "'s", " we", "'ll", " I", "'", "M", "'d"});
}

TEST_CASE("the last of several spaces belongs to the word after them") {
  CHECK(split("a   b") == Pieces{"a", "  ", " b"});
  CHECK(split("a   ") == Pieces{"a", "   "});
  CHECK(split("a \n b") == Pieces{"a", " \n", " b"});
  CHECK(split("a\n\nb") == Pieces{"a", "\n", "\n", "b"});
  CHECK(split("a\tb") == Pieces{"a", "\t", "b"});
}

TEST_CASE("white space is Unicode's property White_Space") {
  // Before an exclamation mark, white space is a piece, and anything else is at most one with it.
  std::set<unsigned> found;
  for (unsigned code_point = 0; code_point < 0x110000; ++code_point) {
    if (code_point >= 0xD800 && code_point <= 0xDFFF) continue;
    if (split("a " + encoded(code_point) + "!")[1] == " ") found.insert(code_point);
  }
  std::set<unsigned> expected = {0x20, 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000};
  for (unsigned code_point = 0x09; code_point <= 0x0D; ++code_point) expected.insert(code_point);
  for (unsigned code_point = 0x2000; code_point <= 0x200A; ++code_point) expected.insert(code_point);
  CHECK(found == expected);  // U+180E, which PCRE2 counts, is not among them
}

TEST_CASE("escapes and groups of a file's pattern mean what they mean in Hugging Face's tokenizers") {
  const auto cut = [](const std::string& pattern, const std::string& text) {
    const PreTokenizer pre_tokenizer({Cut{.pattern = pattern}});
    const auto views = pre_tokenizer.split(text);
    return Pieces(views.begin(), views.end());
  };
  CHECK(cut(R"(\d+)", "a12\u0663b") == Pieces{"a", "12\u0663", "b"});
  CHECK(cut(R"(\w+)", "a_1e\u0301-b") == Pieces{"a_1e\u0301", "-", "b"});  // a mark belongs to its word
  CHECK(cut(R"(\W)", "ab -c_") == Pieces{"ab", " ", "-", "c_"});
  CHECK(cut(R"(\S)", "ab  c") == Pieces{"a", "b", "  ", "c"});
  CHECK(cut(R"([^\s\w])", "a -+ b") == Pieces{"a ", "-", "+", " b"});
  CHECK(cut(R"(\t\r\n|\f\a|\e|\x41)", "b\t\r\nb\f\ab\x1b\x41") ==
        Pieces{"b", "\t\r\n", "b", "\f\a", "b", "\x1b", "A"});
  CHECK(cut(R"(a(?=b))", "abac") == Pieces{"a", "bac"});
  CHECK(cut(R"(a(?!b))", "abac") == Pieces{"ab", "a", "c"});
  CHECK(cut(R"((?<=a)b)", "abcb") == Pieces{"a", "b", "cb"});
  CHECK(cut(R"((?>a+)b)", "aab") == Pieces{"aab"});
  CHECK(cut(R"((?:ab)+)", "xababy") == Pieces{"x", "abab", "y"});
  CHECK(cut(R"((?i:ab)c)", "xABcABC") == Pieces{"x", "ABc", "ABC"});
}

TEST_CASE("invalid UTF-8 forms its own pieces, and ends a piece like the text's end") {
  CHECK(split("\xFF") == Pieces{"\xFF"});
  CHECK(split("ab\xFF\xFE"
              "cd") == Pieces{"ab", "\xFF\xFE", "cd"});
  CHECK(split("a  \xC3 b") == Pieces{"a", "  ", "\xC3", " b"});
  CHECK(split("a\xE2\x82") == Pieces{"a", "\xE2\x82"});
  CHECK(split("\xED\xA0\x80!") == Pieces{"\xED\xA0\x80", "!"});
}

TEST_CASE("the pieces cover any bytes from end to end") {
  std::mt19937 random(8);
  const std::string alphabet("a1' \n!\xC2\xA0\xE3\x80\xF0\x9F\x98\xFF\0", 15);
  for (int round = 0; round < 20000; ++round) {
    std::string text, all;
    for (unsigned length = random() % 30; text.size() < length;) text += alphabet[random() % alphabet.size()];
    for (const std::string& piece : split(text)) {
      REQUIRE(!piece.empty());
      all += piece;
    }
    REQUIRE(all == text);
  }
}

TEST_CASE("a pattern that needs more memory than the compiled code has is run without it") {
  // Each repetition of the group leaves a place to return to.
  const PreTokenizer pre_tokenizer({{R"((?:a|b|ab)+c)"}});
  std::string text;
  for (int i = 0; i < 50'000; ++i) text += "ab";
  text += "cab";
  const auto pieces = pre_tokenizer.split(text);
  REQUIRE(pieces.size() == 2);
  CHECK(pieces[0].size() == 100'001);
  CHECK(pieces[1] == "ab");
}

TEST_CASE("a pattern that would search for years is an error with the place, and short texts pass") {
  // Each run of n letters can be cut in more than 1.6^n ways.
  const PreTokenizer pre_tokenizer({{R"((?:a|aa)+(?!.))"}});
  CHECK(pre_tokenizer.split("aaaa").size() == 1);
  CHECK(pre_tokenizer.split("b aaaaaaaa!").size() == 1);
  CHECK(says(error_message([&] { pre_tokenizer.split("b " + std::string(100, 'a') + "!"); }),
             "PCRE2 cannot split the text at byte 0: match limit exceeded"));
}
