// The tree of a regular expression, and what is refused.
#include "common/text/regex_syntax.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "common/base/error.h"
#include "tests/code_point.h"
#include "tests/error_message.h"
#include "tests/texts_of_part.h"

using namespace staircase;

namespace {

using Texts = std::set<std::string>;

Texts texts(std::string_view pattern, std::size_t longest = 4) {
  return texts_of(parse_regex(pattern), longest);
}

std::string refusal(const std::string& pattern) {
  return error_message([&] { parse_regex(pattern); });
}

}  // namespace

TEST_CASE("parts follow one another, are chosen, and are repeated as often as their counts say") {
  CHECK(texts("") == Texts{""});
  CHECK(texts("ab") == Texts{"ab"});
  CHECK(texts("ab|c|") == Texts{"ab", "c", ""});
  CHECK(texts("a(b|c)d") == Texts{"abd", "acd"});
  CHECK(texts("a(?:b|c)") == Texts{"ab", "ac"});
  CHECK(texts("a?b") == Texts{"b", "ab"});
  CHECK(texts("ab*") == Texts{"a", "ab", "abb", "abbb"});
  CHECK(texts("(ab)+") == Texts{"ab", "abab"});
  CHECK(texts("a{2}") == Texts{"aa"});
  CHECK(texts("a{2,}") == Texts{"aa", "aaa", "aaaa"});
  CHECK(texts("a{1,3}") == Texts{"a", "aa", "aaa"});
  CHECK(texts("a{0,2}") == Texts{"", "a", "aa"});
  CHECK(texts("a{0,}") == texts("a*"));
  CHECK(texts("a{1,}") == texts("a+"));
  CHECK(texts("a{1}") == Texts{"a"});
  CHECK(texts("((a*)*|b)+c", 3) == texts("[ab]*c", 3));
  CHECK(texts("()*") == Texts{""});
}

TEST_CASE("a set has its characters and no others") {
  for (unsigned c = 0; c < 0x3000; ++c) {
    const std::string one = encoded(c);
    CAPTURE(c);
    static const Texts any = texts(".", 3), none_of = texts("[^a-cé]", 3), digits = texts("\\d", 3);
    static const Texts word = texts("\\w", 3), space = texts("\\s", 3), greek = texts("[α-ω\\d_-]", 3);
    static const Texts no_digit = texts("\\D", 3), no_word = texts("\\W", 3), no_space = texts("\\S", 3);
    const bool is_digit = c >= '0' && c <= '9';
    const bool is_space = c == ' ' || (c >= '\t' && c <= '\r');
    const bool is_word = is_digit || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    CHECK(any.contains(one) == (c != '\n'));
    CHECK(none_of.contains(one) == !((c >= 'a' && c <= 'c') || c == 0xE9));
    CHECK(digits.contains(one) == is_digit);
    CHECK(word.contains(one) == is_word);
    CHECK(space.contains(one) == is_space);
    CHECK(no_digit.contains(one) == !is_digit);
    CHECK(no_word.contains(one) == !is_word);
    CHECK(no_space.contains(one) == !is_space);
    CHECK(greek.contains(one) == ((c >= 0x3B1 && c <= 0x3C9) || is_digit || c == '_' || c == '-'));
  }
  CHECK(texts("[a\\]^-]") == Texts{"a", "]", "^", "-"});
  CHECK_FALSE(texts("[^a-zb-c]", 1).contains("d"));  // a range within another one
  CHECK(texts("[\\n\\r\\t]") == Texts{"\n", "\r", "\t"});
  CHECK(texts("\\.\\\\") == Texts{".\\"});
  CHECK(texts("é") == Texts{"é"});
  CHECK(texts("[\\s\\S]", 1).size() == 128);
  CHECK(texts("]}") == Texts{"]}"});
  // The last character of Unicode, and none after it.
  CHECK(texts("[\U0010FFFF-\U0010FFFF]") == Texts{"\U0010FFFF"});
}

TEST_CASE("what cannot be read is refused with its place") {
  const auto refused = [](const std::string& pattern, const std::string& why) {
    CAPTURE(pattern);
    CHECK(refusal(pattern) == "the regular expression cannot be read " + why);
  };
  const std::string counts = "a repetition must be {2}, {2,} or {2,5}; write \\{ for the character";
  refused("ab)c", "before )c: this ) closes no (; write \\) for the character");
  refused("(ab", "at its end: a ) is missing");
  refused("(?=a)", "before =a): of the groups that begin with (?, only (?: is supported");
  refused("(?", "at its end: of the groups that begin with (?, only (?: is supported");
  for (const char c : {'*', '+', '?', '{'}) {
    refused(std::string(1, c),
            std::string("before ") + c + ": there is nothing to repeat; write a \\ before the character");
    refused(std::string("a*") + c,
            std::string("before ") + c + ": a repetition cannot be repeated; put it into ( )");
  }
  for (const char c : {'^', '$'}) {
    refused(std::string("a") + c,
            std::string("before ") + c +
                ": a text must match as a whole, so leave out ^ and $; write a \\ before the "
                "character");
  }
  refused("a{", "at its end: " + counts);
  refused("a{x}", "before x}: " + counts);
  refused("a{,3}", "before ,3}: " + counts);
  refused("a{2,x}", "before x}: " + counts);
  refused("a{2", "at its end: " + counts);
  refused("a{0}", "at its end: the repetition before it allows nothing");
  refused("a{0,0}b", "before b: the repetition before it allows nothing");
  refused("a{3,2}", "at its end: the repetition before it allows nothing");
  refused("[]", "at its end: these brackets are empty; write \\] for the character");
  refused("[^]a]", "before a]: these brackets are empty; write \\] for the character");
  refused("[a", "at its end: it ends too early");
  refused("a\\", "at its end: it ends too early");
  refused("[^\\s\\S]", "at its end: no character fits these brackets");
  const std::string range =
      "a range is from one character to a later one, as in [a-z]; write \\- for the character";
  refused("[z-a]", "before ]: " + range);
  refused("[\\d-z]", "before ]: " + range);
  refused("[a-\\d]", "before ]: " + range);
  for (const char c : std::string("abcefghijklmopquvxyzABCEFGHIJKLMNOPQRTUVXYZ0123456789")) {
    refused(std::string("\\") + c,
            "at its end: of the letters and digits after a backslash, only d, D, w, W, s, S, n, r "
            "and t are supported");
  }
  refused("a\xFF", "before \uFFFD: it must be valid UTF-8");
  refused("\xC3", "before \uFFFD: it must be valid UTF-8");
  refused("\xED\xA0\x80", "before \uFFFD\uFFFD\uFFFD: it must be valid UTF-8");
  refused(")" + std::string(30, 'x'),
          "before )" + std::string(19, 'x') + "...: this ) closes no (; write \\) for the character");
}

TEST_CASE("no pattern makes a large tree") {
  const std::string many = "it has more than 50000 parts when all repetitions are written out";
  CHECK(refusal("(a{1000}){1000}").ends_with(many));
  CHECK(refusal("a{1000000000000000000000}").ends_with(many));
  CHECK(refusal("(){99999}").ends_with(many));
  CHECK(refusal(std::string(30'000, 'a')).ends_with(many));
  CHECK(refusal("a{1,30000}").ends_with(many));
  CHECK(refusal("|a{24996}") == "");  // two parts a letter, one an alternative, and some around them: 50,000
  CHECK(refusal("||a{24996}").ends_with(many));
  CHECK(refusal("a{1,2000}") == "");
  CHECK(refusal(".{0,1000}") == "");
  const auto nested = [](int depth) { return std::string(depth, '(') + "a" + std::string(depth, ')'); };
  CHECK(refusal(nested(100)) == "");
  CHECK(refusal(nested(101)).ends_with("more than 100 groups are nested"));
  CHECK(refusal(std::string(1'000'000, '(')).ends_with("more than 100 groups are nested"));
  std::string wide;
  for (int i = 0; i < 1000; ++i) wide += "(a)";
  CHECK(refusal(wide) == "");
}
