// Grammars in GBNF: what is read, and what is refused where.
#include "common/text/grammar_syntax.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "common/base/error.h"
#include "tests/error_message.h"
#include "tests/texts_of_part.h"

using namespace staircase;

namespace {

using Texts = std::set<std::string>;

Texts texts(std::string_view grammar, std::size_t longest = 4) {
  const GrammarRules rules = parse_grammar(grammar);
  CHECK(rules[0].name == "root");
  return texts_of(rules[0].part, longest, rules);
}

std::string error_of(std::string_view grammar) {
  return error_message([&] { parse_grammar(grammar); });
}

}  // namespace

TEST_CASE("each form of a grammar describes its texts") {
  CHECK(texts("root ::= \"ab\" \"c\"") == Texts{"abc"});
  CHECK(texts("root ::= \"a\" | \"b\" \"c\" | \"\"") == Texts{"a", "bc", ""});
  CHECK(texts("root::=(\"a\"|\"b\")\"c\"") == Texts{"ac", "bc"});
  CHECK(texts("root ::= \"a\"? \"b\"{2} \"c\"{0,1}") == Texts{"bb", "abb", "bbc", "abbc"});
  CHECK(texts("root ::= \"a\"*", 3) == Texts{"", "a", "aa", "aaa"});
  CHECK(texts("root ::= \"ab\"+") == Texts{"ab", "abab"});
  CHECK(texts("root ::= \"a\" {2,} ", 3) == Texts{"aa", "aaa"});
  CHECK(texts("root ::= [a-c_-]") == Texts{"a", "b", "c", "_", "-"});
  CHECK(texts("root ::= [^\\x00-`c-\\U0010ffff]") == Texts{"a", "b"});
  CHECK(texts("root ::= [é-ëx]") == Texts{"é", "ê", "ë", "x"});
}

TEST_CASE("any character is one of Unicode, a line feed as well") {
  const Texts all = texts("root ::= .", 2);
  CHECK(all.size() == 128 + 1920);
  CHECK(all.contains("\n"));
}

TEST_CASE("each escape is its character, in texts and in sets") {
  CHECK(texts(R"(root ::= "\n\r\t\"")") == Texts{"\n\r\t\""});
  CHECK(texts(R"(root ::= "\\\[\]\-")") == Texts{"\\[]-"});
  CHECK(texts(R"(root ::= "\x41\u00e9")") == Texts{"Aé"});
  CHECK(texts(R"(root ::= "\U0001F98a")") == Texts{"🦊"});
  CHECK(texts(R"(root ::= [\n\]\\\x41-\u0043])") == Texts{"\n", "]", "\\", "A", "B", "C"});
}

TEST_CASE("rules may come in any order, and lines end them") {
  CHECK(texts("b-2 ::= \"b\"\nroot ::= a | b-2 # or\n\n# two\na ::= \"a\"") == Texts{"a", "b"});
  CHECK(texts("root ::= \"a\" |\n  \"b\"") == Texts{"a", "b"});
  CHECK(texts("root ::=\n # in a comment: \"x\n \"a\"\r\n\r\n") == Texts{"a"});
  CHECK(texts("root ::= (\"a\"\n | # c\n\"b\"\n)\n") == Texts{"a", "b"});
  CHECK(texts("root ::= \"a\" a_B9\na_B9 ::= \"#\"") == Texts{"a#"});
}

TEST_CASE("a grammar that cannot be read is refused with line and column") {
  const std::string at = "the grammar cannot be read at line ";
  CHECK(error_of("") == at + "1, column 1: there is no rule root, which describes whole texts");
  CHECK(error_of("x ::= \"a\"") == at + "1, column 1: there is no rule root, which describes whole texts");
  CHECK(error_of("root ::= \"a\"\n  b c") == at + "2, column 5: expected ::= after the name of a rule");
  CHECK(error_of("root ::= \"é\" x\ny ::= z") == at + "1, column 14: there is no rule x");
  CHECK(error_of("root ::= \"a\"\nroot ::= \"b\"") ==
        at + "2, column 1: the rule root is defined for the second time");
  CHECK(error_of("root ::= \"a\n\"") ==
        at + "1, column 12: a \" is missing; write \\n for the end of a line");
  CHECK(error_of("root ::= [a\n]") == at + "1, column 12: a ] is missing; write \\n for the end of a line");
  CHECK(error_of("root ::= [a-") == at + "1, column 13: a ] is missing; write \\n for the end of a line");
  CHECK(error_of("root ::= []") ==
        at + "1, column 12: these brackets are empty; write \\] for the character");
  CHECK(error_of("root ::= [^\\x00-\\U0010ffff]") == at + "1, column 28: no character fits these brackets");
  CHECK(error_of("root ::= [b-a]") ==
        at + "1, column 14: a range is from one character to a later one, as in [a-z]");
  CHECK(error_of("root ::= (\"a\"") == at + "1, column 14: a ) is missing");
  CHECK(error_of("root ::= \"a\")") ==
        at + "1, column 13: this ) closes no (; write \")\" for the character");
  CHECK(error_of("root ::= \"a\"**") ==
        at + "1, column 14: a repetition cannot be repeated; put it into ( )");
  for (const std::string count : {"{", "{a}", "{1", "{1,a}", "{,3}", "{-1}"})
    CHECK(error_of("root ::= \"a\"" + count).ends_with(": a repetition must be {2}, {2,} or {2,5}"));
  for (const std::string count : {"{0}", "{3,2}", "{0,0}"})
    CHECK(error_of("root ::= \"a\"" + count).ends_with(": the repetition before it allows nothing"));
  CHECK(error_of("root ::= \"a\"{50001}").ends_with(": a count is at most 50000"));
  CHECK(error_of("root ::= \"a\"{50000}") == "");
  for (const std::string wrong : {"*", "<think>", "'a'", "::= \"a\"", "9", "!\"a\""})
    CHECK(error_of("root ::= " + wrong) ==
          at + "1, column 10: expected a text in quotes, a set in brackets, a rule, a group or a dot");
  for (const std::string wrong : {"\\q", "\\", "\\0", "\\^"}) {
    CHECK(error_of("root ::= \"" + wrong) == at + "1, column 12: expected after a backslash: n, r, t, x41, "
                                                  "u00e9, U0001f98a, or one of \" \\ [ ] -");
  }
  CHECK(error_of("root ::= \"\\x4\"") == at + "1, column 14: \\x has 2 hexadecimal digits");
  for (const std::string wrong : {"\\ud800", "\\uDFFF", "\\U00110000"})
    CHECK(error_of("root ::= \"" + wrong + "\"").ends_with(": the code before it is not a character"));
  CHECK(error_of("root ::= \"\xC3\"").ends_with(": it must be valid UTF-8"));
  CHECK(error_of("root ::= \"a\" \xC3").find("expected a text in quotes") != std::string::npos);
}

TEST_CASE("a rule that begins with itself is refused, in every disguise") {
  const std::string advice = "; write a ::= b (\"+\" b)* instead of a ::= b | a \"+\" b";
  CHECK(error_of("root ::= root \"a\" | \"b\"") == "the rule root begins with itself" + advice);
  CHECK(error_of("root ::= \"x\" a\na ::= (b | \"c\")+\nb ::= \"\" a \"c\"") ==
        "the rule a begins with itself, by way of b" + advice);
  for (const std::string rules :
       {"\"a\"? root \"b\" | \"c\"", "[ab]* root | \"c\"", "e root | \"c\"\ne ::= f | \"x\"\nf ::= \"\"",
        "(\"a\" | root)", "root", "\"a\"{0,3} (\"\" | \"b\") root{2}"})
    CHECK(error_of("root ::= " + rules).starts_with("the rule root begins with itself"));
  CHECK(error_of("root ::= \"a\"+ root | \"c\" (\"b\" | \"d\") root*") == "");
  std::string chain = "root ::= r1\n";
  for (int i = 1; i < 10'000; ++i) chain += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + "\n";
  CHECK(
      error_of(chain + "r10000 ::= root").starts_with("the rule root begins with itself, by way of r10000"));
  CHECK(error_of(chain + "r10000 ::= \"a\"") == "");
}

TEST_CASE("what no finite text follows is left out, and a grammar of nothing else is refused") {
  CHECK(texts("root ::= \"a\" | \"b\" endless | \"c\" endless*\nendless ::= \"x\" endless") ==
        Texts{"a", "c"});
  for (const std::string rules :
       {"\"a\" root", "\"a\" (root | \"b\" root)", "x{2}\nx ::= \"a\" y\ny ::= \"b\" x+"})
    CHECK(error_of("root ::= " + rules) ==
          "no finite text matches the grammar: all its texts go on for ever");
}

TEST_CASE("a grammar has at most 50000 parts, 100 groups in one another, and no size overflows") {
  const auto repeated = [](const std::string& text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
  };
  CHECK(error_of("root ::= " + repeated("(", 100) + "\"a\"" + repeated(")", 100)) == "");
  CHECK(error_of("root ::= " + repeated("(", 101)).ends_with(": more than 100 groups are nested"));
  const std::string letters = "root ::= \"" + repeated("a", 16'665) + "\" | \"\"";  // 50,000
  CHECK(error_of(letters) == "");
  CHECK(error_of(letters + " \"\"").ends_with(": it has more than 50000 parts"));
  CHECK(error_of("root ::= " + repeated("(", 90) + "\"a\"" + repeated("){50000}", 90)) == "");
  CHECK(error_of("root ::= \"a\"{99999999999999999999}").ends_with(": a count is at most 50000"));
  CHECK(error_of("root ::= \"a\" #" + repeated("x", 1'000'000)) == "");
}
