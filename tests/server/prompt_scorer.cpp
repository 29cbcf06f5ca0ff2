// Scores that are computed in parts are those of one pass.
#include "common/server/prompt_scorer.h"

#include <doctest/doctest.h>

#include "scoring.h"
#include "tests/step.h"

using namespace staircase;

namespace {

std::shared_ptr<const std::vector<Token>> scored(PromptScorer& scorer, const std::vector<int>& prompt,
                                                 int likeliest, int parts) {
  for (int part = 0; part < parts; ++part) CHECK(scorer(prompt, likeliest) == nullptr);
  return scorer(prompt, likeliest);
}

void check_scores(const std::vector<Token>& got, const std::vector<int>& prompt, int likeliest) {
  const std::vector<Token> wanted = score(tales(), prompt, likeliest);
  REQUIRE(got.size() == wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i].id == prompt[i]);
    REQUIRE(got[i].logprobs->own.has_value() == wanted[i].logprobs->own.has_value());
    if (i == 0) continue;
    CHECK(*got[i].logprobs->own == doctest::Approx(*wanted[i].logprobs->own).epsilon(1e-4));
    CHECK(got[i].logprobs->likeliest.size() == static_cast<std::size_t>(likeliest));
  }
}

}  // namespace

TEST_CASE("a prompt's scores in parts are those of one pass") {
  std::vector<int> prompt;
  for (int i = 0; i < 50; ++i) prompt.push_back(1 + i * 37 % 400);
  for (const int chunk : {1, 7, 49, 50, 51}) {
    CAPTURE(chunk);
    PromptScorer scorer(tales(), chunk);
    check_scores(*scored(scorer, prompt, 3, (49 + chunk - 1) / chunk), prompt, 3);
  }
  PromptScorer scorer(tales(), {});
  check_scores(*scored(scorer, prompt, 3, 1), prompt, 3);
}

TEST_CASE("equal prompts share their scores, other ones do not") {
  PromptScorer scorer(tales(), 4);
  const std::vector<int> one{1, 2, 3, 4, 5, 6}, other{1, 2, 3, 9};
  const auto first = scored(scorer, one, 2, 2);
  CHECK(scorer(one, 2) == first);
  check_scores(*scored(scorer, one, 1, 2), one, 1);
  CHECK(scorer(one, 2) == nullptr);  // its client leaves in the midst
  check_scores(*scored(scorer, other, 2, 1), other, 2);
  check_scores(*first, one, 2);
  check_scores(*scored(scorer, {7}, 2, 0), {7}, 2);
}

TEST_CASE("a long prompt is scored in rings where layers have a window") {
  Model windowed = Model::load(find_model("tales-window-1m"), make_test_device(2));
  std::vector<int> prompt;
  for (int i = 0; i < 500; ++i) prompt.push_back(1 + i * 37 % 400);
  for (const std::optional<int> chunk : {std::optional<int>(), std::optional<int>(100)}) {
    PromptScorer scorer(windowed, chunk);
    std::shared_ptr<const std::vector<Token>> got;
    int passes = -1;
    for (; !got; ++passes) got = scorer(prompt, 2);
    CHECK(passes == (chunk ? 5 : 2));
    const std::vector<Token> wanted = score(windowed, prompt, 2);
    REQUIRE(got->size() == wanted.size());
    for (std::size_t i = 1; i < wanted.size(); ++i)
      CHECK(*(*got)[i].logprobs->own == doctest::Approx(*wanted[i].logprobs->own).epsilon(1e-4));
  }
}
