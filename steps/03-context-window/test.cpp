#include <doctest/doctest.h>

#include <random>

#include "generate.h"
#include "tests/step.h"

using namespace staircase;

/// How many tokens went through the model in each of its passes.
std::vector<std::size_t> passes(const std::vector<int>& prompt, int count) {
  std::vector<std::size_t> counts;
  const Unobserved at_the_end;
  tales().on_stage([&](std::string_view name, std::span<const float> values) {
    if (name == "embeddings") counts.push_back(values.size() / tales().config().n_embd);
  });
  generate(tales(), prompt, {.max_new_tokens = count, .ignore_eos = true}, [](const Token&) {});
  return counts;
}

TEST_CASE("the window grows until it is as large as the context, and then keeps its size") {
  const std::vector<int> prompt(static_cast<std::size_t>(tales().config().n_positions - 2), 100);
  CHECK(passes(prompt, 5) == std::vector<std::size_t>{510, 511, 512, 512, 512});
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

TEST_CASE("the window is the last tokens of the text, and as many as the context holds") {
  // Random tokens: where a text repeats itself, a window of another size looks the same.
  const auto context = static_cast<std::size_t>(tales().config().n_positions);
  int different = 0;
  for (unsigned seed = 1; seed <= 8; ++seed) {
    std::mt19937 generator(seed);
    std::vector<int> tokens(context + 3);
    for (int& token : tokens) token = static_cast<int>(generator() % 4095);
    const auto next_behind = [&](std::size_t count) {
      return argmax(tales().next_logits(std::span(tokens).last(count)));
    };
    const int want = next_behind(context);
    different += want != next_behind(context - 1);
    CHECK(generate(tales(), tokens, {.max_new_tokens = 1}, [](const Token&) {}).tokens.back() == want);
  }
  CHECK(different > 0);  // otherwise a window of one token less would pass
}

TEST_CASE("the window begins to slide where Hugging Face's does") {
  const auto& run = reference("sliding.json");
  const std::vector<int> prompt = run["prompt_ids"], ids = run["ids"];
  const auto before = run["first_sliding_step"].get<std::ptrdiff_t>() - 3;
  std::vector<int> tokens = prompt;
  tokens.insert(tokens.end(), ids.begin(), ids.begin() + before);
  const Generation generation =
      generate(tales(), tokens, {.max_new_tokens = 8, .ignore_eos = true}, [](const Token&) {});
  CHECK(tokens_after(tokens.size(), generation.tokens) ==
        std::vector(ids.begin() + before, ids.begin() + before + 8));
}

TEST_CASE("600 tokens slide through a context of 512 as Hugging Face's model does on each window" *
          doctest::skip(kSanitized)) {
  const auto run = reference("sliding.json");
  std::vector<int> text = run["prompt_ids"], ids = run["ids"];
  std::vector<double> gaps = run["gaps"];
  // Start at 450 tokens: nothing new happens before the context is full.
  const auto known = static_cast<std::ptrdiff_t>(450 - text.size());
  text.insert(text.end(), ids.begin(), ids.begin() + known);
  ids.erase(ids.begin(), ids.begin() + known);
  gaps.erase(gaps.begin(), gaps.begin() + known);
  REQUIRE(text.size() + ids.size() > static_cast<std::size_t>(tales().config().n_positions));
  const StoppingOptions stopping{.max_new_tokens = static_cast<int>(ids.size()), .ignore_eos = true};
  const Generation generation = generate(tales(), text, stopping, [](const Token&) {});
  CHECK(first_difference(tokens_after(text.size(), generation.tokens), ids, gaps) == "");
}

TEST_CASE("a text that fits equals the previous step's") {
  for (const auto& run : reference("greedy.json")["cases"]) {
    const std::vector<int> prompt = run["prompt_ids"], want = run["ids"];
    const Generation generation = generate(tales(), prompt, {.max_new_tokens = 64}, [](const Token&) {});
    CHECK(first_difference(tokens_after(prompt.size(), generation.tokens), want, run["gaps"]) == "");
  }
}
