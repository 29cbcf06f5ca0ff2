#include <doctest/doctest.h>

#include "generate.h"
#include "tests/error_message.h"
#include "tests/step.h"

using namespace staircase;

TEST_CASE("greedy decoding chooses the tokens that Hugging Face's generate chooses") {
  for (const auto& run : reference("greedy.json")["cases"]) {
    CAPTURE(run["name"]);
    const std::vector<int> prompt = run["prompt_ids"], want = run["ids"];
    const StoppingOptions stopping{.max_new_tokens = static_cast<int>(want.size())};
    const Generation generation = generate(tales(), prompt, stopping, [](const Token&) {});
    CHECK(first_difference(tokens_after(prompt.size(), generation.tokens), want, run["gaps"]) == "");
  }
}

TEST_CASE("every token is reported at the moment it is chosen") {
  std::vector<int> reported;
  const Generation generation = generate(tales(), {100}, {.max_new_tokens = 5},
                                         [&](const Token& token) { reported.push_back(token.id); });
  CHECK(reported.size() == 5);
  CHECK(reported == tokens_after(1, generation.tokens));
  CHECK(generation.finish_reason == FinishReason::kLength);
}

TEST_CASE("no new token leaves the prompt unchanged") {
  CHECK(generate(tales(), {100, 200}, {.max_new_tokens = 0}, [](const Token&) {}).tokens ==
        std::vector{100, 200});
}

TEST_CASE("a text may fill the context plus one more token, which the model never sees") {
  const int context = tales().config().n_positions;
  const std::vector<int> prompt(static_cast<std::size_t>(context), 100);
  const auto ignore = [](const Token&) {};
  CHECK(std::ssize(generate(tales(), prompt, {.max_new_tokens = 1}, ignore).tokens) == context + 1);
  CHECK_THROWS_WITH_AS(generate(tales(), prompt, {.max_new_tokens = 2}, ignore),
                       doctest::Contains("03-context-window"), UsageError);
  const auto refusal = [&](int length) {
    const std::vector<int> tokens(static_cast<std::size_t>(length), 100);
    return error_message([&] { generate(tales(), tokens, {.max_new_tokens = 600}, ignore); });
  };
  CHECK(says(refusal(1), "--max-new-tokens 600", "have 601 tokens together", "context has 512"));
  CHECK(says(refusal(513), "have 1113 tokens together"));
}
