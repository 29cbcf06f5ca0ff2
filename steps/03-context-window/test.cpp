#include <doctest/doctest.h>

#include "generate.h"
#include "tests/step.h"

using namespace staircase;

TEST_CASE("600 tokens slide through a context of 512 as Hugging Face's model does on each window" *
          doctest::skip(kSanitized)) {
  const auto run = reference("sliding.json");
  const std::vector<int> prompt = run["prompt_ids"], want = run["ids"];
  REQUIRE(prompt.size() + want.size() > static_cast<std::size_t>(tales().config().n_positions));
  const GenerateOptions options{.max_new_tokens = static_cast<int>(want.size()), .ignore_eos = true};
  const Generation generation = generate(tales(), prompt, options, [](const Token&) {});
  CHECK(first_difference(behind(prompt.size(), generation.tokens), want, run["gaps"]) == -1);
}

TEST_CASE("the window begins to slide where Hugging Face's does") {
  const auto& run = reference("sliding.json");
  const std::vector<int> prompt = run["prompt_ids"], ids = run["ids"];
  const auto before = run["first_sliding_step"].get<std::ptrdiff_t>() - 3;
  std::vector<int> tokens = prompt;
  tokens.insert(tokens.end(), ids.begin(), ids.begin() + before);
  const Generation generation =
      generate(tales(), tokens, {.max_new_tokens = 8, .ignore_eos = true}, [](const Token&) {});
  CHECK(behind(tokens.size(), generation.tokens) ==
        std::vector(ids.begin() + before, ids.begin() + before + 8));
}

TEST_CASE("a prompt longer than the context counts as its last tokens") {
  std::vector<int> prompt(static_cast<std::size_t>(tales().config().n_positions), 100);
  prompt.front() = 200;
  prompt.push_back(300);
  const std::vector<int> window(prompt.begin() + 1, prompt.end());
  const auto ignore = [](const Token&) {};
  const int next = generate(tales(), prompt, {.max_new_tokens = 1}, ignore).tokens.back();
  CHECK(next == generate(tales(), window, {.max_new_tokens = 1}, ignore).tokens.back());
}

TEST_CASE("a text that fits is the text of the step before") {
  for (const auto& run : reference("greedy.json")["cases"]) {
    const std::vector<int> prompt = run["prompt_ids"], want = run["ids"];
    const Generation generation = generate(tales(), prompt, {.max_new_tokens = 64}, [](const Token&) {});
    CHECK(first_difference(behind(prompt.size(), generation.tokens), want, run["gaps"]) == -1);
  }
}
