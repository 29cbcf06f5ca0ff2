#include <doctest/doctest.h>

#include <bit>

#include "expert_words.h"
#include "plain_model.h"
#include "tests/captured.h"
#include "tests/error_message.h"
#include "tests/reference_logits.h"
#include "tests/run_program.h"
#include "tests/step.h"

namespace staircase {
namespace {

/// Short texts, and one of 200 tokens.
std::vector<std::vector<int>> texts() {
  std::vector<int> tokens;
  for (int i = 0; i < 200; ++i) tokens.push_back((i * 1237 + 31) % 4000);
  return {{321}, {321, 11, 5, 900, 17}, tokens};
}

}  // namespace

TEST_CASE("the logits after a text are the engine's") {
  Model model = Model::load(find_model("tales-moe-1m"), make_cpu_device(2));
  PlainModel plain(model);
  CHECK(difference_from_engine(model, texts(), [&](const auto& text) { return plain.logits(text); }) < 1e-4);
}

TEST_CASE("each token of the last call has its routes, in each block with a router") {
  PlainModel plain(reference_model("qwen3-moe"));
  plain.logits({321, 11, 5, 900, 17});
  plain.logits({321, 11, 5});
  REQUIRE(plain.routes.size() == 3);
  CHECK(plain.routes[0].size() == 3);
  CHECK(plain.routes[1].empty());
  CHECK(plain.routes[2].size() == 3);
  for (const Shares& shares : plain.routes[2]) {
    CHECK(shares.size() == 2);
    float sum = 0.0f;
    for (const auto& one : shares) sum += one.second;
    CHECK(sum == doctest::Approx(1));
  }
}

TEST_CASE("neighbouring rows are counted together, and an expert that both choose once") {
  const std::vector<Shares> routes{{{0, 0.5f}, {1, 0.5f}},
                                   {{1, 0.5f}, {2, 0.5f}},
                                   {{3, 0.9f}, {4, 0.1f}},
                                   {{3, 0.2f}, {4, 0.8f}},
                                   {{5, 0.5f}, {6, 0.5f}}};
  CHECK(distinct_experts(routes, 1) == doctest::Approx(2));
  CHECK(distinct_experts(routes, 2) == doctest::Approx(2.5));  // 3 and 2; the last row has no partner
  CHECK(distinct_experts(routes, 4) == doctest::Approx(5));
  CHECK(distinct_experts(routes, 5) == doctest::Approx(7));
}

TEST_CASE("the expected number at random is the mean over all choices that there are") {
  const int masks[] = {3, 5, 9, 6, 10, 12};  // two of four
  double sum = 0.0;
  for (const int a : masks)
    for (const int b : masks)
      for (const int c : masks) sum += std::popcount(static_cast<unsigned>(a | b | c));
  CHECK(expected_experts(4, 2, 3) == doctest::Approx(sum / (6 * 6 * 6)));
  CHECK(expected_experts(8, 2, 1) == doctest::Approx(2));
  CHECK(expected_experts(8, 2, 8) == doctest::Approx(7.199).epsilon(1e-4));
  CHECK(expected_experts(8, 2, 64) == doctest::Approx(8));
}

TEST_CASE("the tokens of an expert come by their number, and of as many the lowest id first") {
  const std::vector<Shares> routes{{{0, 0.5f}, {1, 0.5f}},
                                   {{1, 0.5f}, {2, 0.5f}},
                                   {{1, 0.9f}, {2, 0.1f}},
                                   {{1, 0.2f}, {3, 0.8f}},
                                   {{0, 0.5f}, {1, 0.5f}}};
  const std::vector<int> tokens{50, 7, 50, 9, 7};
  CHECK(tokens_of(1, tokens, routes) == std::vector<int>{7, 50, 9});
  CHECK(tokens_of(2, tokens, routes) == std::vector<int>{7, 50});
  CHECK(tokens_of(0, tokens, routes) == std::vector<int>{7, 50});
  CHECK(tokens_of(3, tokens, routes) == std::vector<int>{9});
  CHECK(tokens_of(4, tokens, routes).empty());
}

TEST_CASE("each block's numbers are of its own routes") {
  Model model = Model::load(find_model("tales-moe-1m"), make_cpu_device(2));
  const std::vector<int> tokens = texts().back();
  PlainModel plain(model);
  plain.logits(tokens);
  Captured captured(stderr);
  print_experts(model, tales_tokenizer(), tokens);
  const std::string text = captured.text();
  std::set<std::string> numbers;
  for (std::size_t block = 0; block < 4; ++block) {
    numbers.insert(fmt::format("{:.2f}", distinct_experts(plain.routes[block], 8)));
    for (const std::size_t rows : {8, 64})
      CHECK(contains(text, fmt::format("block {}: {:2} rows read {:.2f} experts;", block, rows,
                                       distinct_experts(plain.routes[block], rows))));
    for (int expert = 0; expert < 8; ++expert) {
      const std::vector<int> read = tokens_of(expert, tokens, plain.routes[block]);
      const std::string first = read.empty() ? "" : " " + quoted(tales_tokenizer().decode({read.data(), 1}));
      CHECK(contains(text, fmt::format("block {}, expert {}: {}", block, expert, first)));
    }
  }
  CHECK(numbers.size() > 1);
}

TEST_CASE("--show-experts prints the words of each expert in each block, and how many experts rows read") {
  const ProgramRun result =
      run_program(STAIRCASE_STEP_PROGRAM,
                  "--model tales-moe-1m --prompt 'A fox' --show-experts --ignore-eos --max-new-tokens 20");
  REQUIRE(result.status == 0);
  for (int block = 0; block < 4; ++block) {
    for (int expert = 0; expert < 8; ++expert)
      CHECK(contains(result.err, fmt::format("block {}, expert {}:", block, expert)));
    CHECK(contains(result.err, fmt::format("block {}:  1 rows read 2.00 experts", block)));
    CHECK(contains(result.err, fmt::format("block {}:  8 rows read ", block)));
  }
  CHECK(contains(result.err, " experts; at random they would read 7.20\n"));
  CHECK(result.err.find("64 rows") == std::string::npos);
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--prompt 'A fox' --max-new-tokens 1").err.find("expert") ==
        std::string::npos);
}

}  // namespace staircase
