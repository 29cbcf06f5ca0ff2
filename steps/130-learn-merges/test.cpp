#include <doctest/doctest.h>

#include <random>

#include "common/base/file.h"
#include "merges.h"
#include "tests/captured.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

/// Lets a check that fails show the merges.
template <>
struct doctest::StringMaker<Merge> {
  static String convert(const Merge& merge) {
    return fmt::format("{} and {}, {} times", merge.left, merge.right, merge.count).c_str();
  }
};
template <>
struct doctest::StringMaker<std::optional<Merge>> {
  static String convert(const std::optional<Merge>& merge) { return merge ? toString(*merge) : "none"; }
};

namespace {

const std::string& fables() {
  static const std::string text = read_file(STAIRCASE_SOURCE_TREE "/bench/fables.txt");
  return text;
}

std::vector<int> bytes(std::string_view text) {
  std::vector<int> tokens;
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

}  // namespace

TEST_CASE("the words of a text are counted, each byte a token, and a space belongs to the next word") {
  const std::vector<Word> words = words_of("to be or not to be");
  std::map<std::vector<int>, std::int64_t> counts;
  for (const Word& word : words) counts[word.tokens] = word.count;
  CHECK(counts ==
        std::map<std::vector<int>, std::int64_t>{
            {bytes("to"), 1}, {bytes(" to"), 1}, {bytes(" be"), 2}, {bytes(" or"), 1}, {bytes(" not"), 1}});
  CHECK(words_of("").empty());
  CHECK(words_of("\xff")[0].tokens == std::vector<int>{255});
}

TEST_CASE("the most frequent pair counts a word as often as the text has it, and ties go to smaller ids") {
  CHECK(most_frequent_pair({{{1, 2, 3}, 2}, {{2, 3}, 3}}) == Merge{2, 3, 5});
  CHECK(most_frequent_pair({{{5, 6}, 4}, {{3, 9}, 4}, {{3, 8}, 4}}) == Merge{3, 8, 4});
  CHECK(most_frequent_pair({{{7, 7, 7}, 3}}) == Merge{7, 7, 6});
  CHECK_FALSE(most_frequent_pair({{{1, 2}, 1}, {{3}, 9}}));
  CHECK_FALSE(most_frequent_pair({}));
}

TEST_CASE("a pair is merged from left to right, and a token is part of one merge only") {
  for (const auto& [tokens, merged] :
       std::vector<std::pair<std::vector<int>, std::vector<int>>>{{{}, {}},
                                                                  {{1}, {1}},
                                                                  {{1, 2}, {9}},
                                                                  {{1, 2, 1, 2, 1}, {9, 9, 1}},
                                                                  {{2, 1}, {2, 1}},
                                                                  {{1, 1, 2}, {1, 9}}}) {
    std::vector<int> found = tokens;
    merge_pair(found, 1, 2, 9);
    CHECK(found == merged);
  }
  std::vector<int> same{1, 1, 1, 1, 1};
  merge_pair(same, 1, 1, 9);
  CHECK(same == std::vector<int>{9, 9, 1});
}

TEST_CASE("the merges of the fables are those that the library of Hugging Face learns") {
  std::vector<Word> words = words_of(fables());
  const auto expected = reference("merges.json")["merges"];
  const std::vector<Merge> merges = learn_merges(words, static_cast<int>(expected.size()));
  REQUIRE(merges.size() == expected.size());
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  for (std::size_t i = 0; i < merges.size(); ++i) {
    CAPTURE(i);
    REQUIRE(texts[static_cast<std::size_t>(merges[i].left)] == expected[i][0].get<std::string>());
    REQUIRE(texts[static_cast<std::size_t>(merges[i].right)] == expected[i][1].get<std::string>());
    texts.push_back(expected[i][0].get<std::string>() + expected[i][1].get<std::string>());
  }
}

TEST_CASE("each merge is the most frequent pair of the whole text, counted anew without words") {
  std::mt19937 random(1);
  std::string text;
  for (int i = 0; i < 400; ++i) text += " abc"[random() % 4];
  std::vector<Word> words = words_of(text);
  const std::vector<Merge> merges = learn_merges(words, 30);
  CHECK(merges.size() > 5);
  // The text as one list of tokens per piece of the pre-tokenizer.
  std::vector<std::vector<int>> pieces;
  for (const std::string_view piece : PreTokenizer({gpt2_cut()}).split(text)) pieces.push_back(bytes(piece));
  for (std::size_t m = 0; m < merges.size(); ++m) {
    std::map<std::pair<int, int>, std::int64_t> counts;
    for (const std::vector<int>& piece : pieces)
      for (std::size_t i = 0; i + 1 < piece.size(); ++i) ++counts[{piece[i], piece[i + 1]}];
    std::int64_t most = 0;
    for (const auto& [pair, count] : counts) most = std::max(most, count);
    CHECK(merges[m].count == most);
    CHECK(counts[{merges[m].left, merges[m].right}] == most);
    for (std::vector<int>& piece : pieces) {
      std::vector<int> after;
      for (std::size_t i = 0; i < piece.size(); ++i) {
        if (i + 1 < piece.size() && piece[i] == merges[m].left && piece[i + 1] == merges[m].right) {
          after.push_back(256 + static_cast<int>(m));
          ++i;
        } else {
          after.push_back(piece[i]);
        }
      }
      piece = after;
    }
  }
}

TEST_CASE("learning ends when no pair is there twice") {
  std::vector<Word> words = words_of("abab");
  const std::vector<Merge> merges = learn_merges(words, 100);
  REQUIRE(merges.size() == 1);
  CHECK(merges[0] == Merge{'a', 'b', 2});
  CHECK(words[0].tokens == std::vector<int>{256, 256});
  std::vector<Word> none;
  CHECK(learn_merges(none, 5).empty());
}

TEST_CASE(
    "each merge is a line with its id, its count and its texts, and the last one has the tokens of the "
    "text") {
  Captured err(stderr);
  show_merges("hug hug hug hugs", 3);
  CHECK(err.text() ==
        "   256       4 times  \"h\" \"u\"\n   257       4 times  \"hu\" \"g\"\n   258       3 times  \" \" "
        "\"hug\"\n"
        "16 bytes are 5 tokens\n");
}

TEST_CASE("the program shows the merges of a file, and continues the prompt as before") {
  const std::string options = "--prompt 'A fox' --max-new-tokens 5 ";
  const ProgramRun plain = run_program(STAIRCASE_STEP_PROGRAM, options),
                   learns = run_program(
                       STAIRCASE_STEP_PROGRAM,
                       options + "--merges 2 --corpus " STAIRCASE_SOURCE_TREE "/bench/fables.txt");
  CHECK(learns.status == 0);
  CHECK(learns.out == plain.out);
  CHECK(learns.err.find("\n   256 ") != std::string::npos);
  CHECK(learns.err.find("\n   257 ") != std::string::npos);
  CHECK(learns.err.find("\n   258 ") == std::string::npos);
  CHECK(plain.err.find("times") == std::string::npos);
  const ProgramRun missing = run_program(STAIRCASE_STEP_PROGRAM, options + "--corpus /nonexistent");
  CHECK(missing.status == 1);
  CHECK(missing.err.find("error: ") != std::string::npos);
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, options + "--merges -1").status == 2);
  const std::string idle = run_program(STAIRCASE_STEP_PROGRAM, options + "--merges 5").err;
  CHECK(idle.find("warning: --merges does nothing without --corpus") != std::string::npos);
  CHECK(plain.err.find("warning") == std::string::npos);
}
