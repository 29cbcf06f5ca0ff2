#include <doctest/doctest.h>

#include "generate.h"
#include "tests/step.h"

using namespace staircase;

TEST_CASE("a text is finished by the end-of-text token, or by the last requested token") {
  const int eos = 7, other = 8;
  const StoppingOptions stopping{.max_new_tokens = 3};
  CHECK(finish_reason(eos, 1, eos, stopping) == FinishReason::kEos);
  CHECK(finish_reason(other, 1, eos, stopping) == std::nullopt);
  CHECK(finish_reason(other, 2, eos, stopping) == std::nullopt);
  CHECK(finish_reason(other, 3, eos, stopping) == FinishReason::kLength);
  CHECK(finish_reason(eos, 3, eos, stopping) == FinishReason::kEos);
}

TEST_CASE("with --ignore-eos the end-of-text token is a token like any other") {
  const int eos = 7;
  const StoppingOptions stopping{.max_new_tokens = 3, .ignore_eos = true};
  CHECK(finish_reason(eos, 1, eos, stopping) == std::nullopt);
  CHECK(finish_reason(eos, 3, eos, stopping) == FinishReason::kLength);
}

TEST_CASE("a text ends where Hugging Face's generate ends it") {
  for (const auto& run : reference("greedy.json")["cases"]) {
    CAPTURE(run["name"]);
    const std::vector<int> prompt = run["prompt_ids"], want = run["ids"];
    const Generation generation = generate(tales(), prompt, {.max_new_tokens = 64}, [](const Token&) {});
    CHECK(first_difference(tokens_after(prompt.size(), generation.tokens), want, run["gaps"]) == "");
    CHECK(generation.finish_reason == (run["finish"] == "eos" ? FinishReason::kEos : FinishReason::kLength));
  }
}

/// The reference case in which the model ends its text.
nlohmann::json ending() {
  for (const auto& run : reference("greedy.json")["cases"]) {
    if (run["finish"] == "eos") return run;
  }
  return {};
}

TEST_CASE("the end-of-text token is the last one, and is reported like the others") {
  const std::vector<int> prompt = ending()["prompt_ids"];
  std::vector<int> reported;
  const Generation generation = generate(tales(), prompt, {.max_new_tokens = 64},
                                         [&](const Token& token) { reported.push_back(token.id); });
  CHECK(generation.tokens.back() == tales().config().eos_token_id);
  CHECK(reported == tokens_after(prompt.size(), generation.tokens));
}

TEST_CASE("--ignore-eos continues after the end of the text") {
  const std::vector<int> prompt = ending()["prompt_ids"];
  const Generation generation =
      generate(tales(), prompt, {.max_new_tokens = 64, .ignore_eos = true}, [](const Token&) {});
  CHECK(generation.tokens.size() == prompt.size() + 64);
  CHECK(generation.finish_reason == FinishReason::kLength);
}

TEST_CASE("an end-of-text token in the prompt ends nothing") {
  const int eos = tales().config().eos_token_id;
  CHECK(generate(tales(), {eos}, {.max_new_tokens = 5}, [](const Token&) {}).tokens.size() == 6);
}

TEST_CASE("no new token leaves the prompt unchanged, even one that ends in an end-of-text token") {
  const std::vector<int> prompt{100, tales().config().eos_token_id};
  const Generation generation = generate(tales(), prompt, {.max_new_tokens = 0}, [](const Token&) {});
  CHECK(generation.tokens == prompt);
  CHECK(generation.finish_reason == FinishReason::kLength);
}

TEST_CASE("a text may still have one token more than the context, and no more") {
  const int context = tales().config().n_positions;
  const std::vector<int> prompt(static_cast<std::size_t>(context), 100);
  const auto ignore = [](const Token&) {};
  CHECK(std::ssize(generate(tales(), prompt, {.max_new_tokens = 1}, ignore).tokens) == context + 1);
  CHECK_THROWS_WITH_AS(generate(tales(), prompt, {.max_new_tokens = 2}, ignore),
                       doctest::Contains("03-context-window"), UsageError);
}
