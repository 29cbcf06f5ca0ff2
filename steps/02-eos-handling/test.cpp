#include <doctest/doctest.h>

#include "generate.h"
#include "tests/step.h"

using namespace staircase;

TEST_CASE("a text ends where Hugging Face's generate ends it") {
  for (const auto& run : reference("greedy.json")["cases"]) {
    CAPTURE(run["name"]);
    const std::vector<int> prompt = run["prompt_ids"], want = run["ids"];
    const GenerateOptions options{.max_new_tokens = 64};
    const Generation generation = generate(tales(), prompt, options, [](const Token&) {});
    CHECK(first_difference(behind(prompt.size(), generation.tokens), want, run["gaps"]) == -1);
    CHECK(generation.finish_reason == (run["finish"] == "eos" ? FinishReason::kEos : FinishReason::kLength));
  }
}

/// The case of the reference in which the model ends its text.
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
  CHECK(reported == behind(prompt.size(), generation.tokens));
}

TEST_CASE("--ignore-eos goes on behind the end of the text") {
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
