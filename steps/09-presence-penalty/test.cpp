#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "generate.h"
#include "tests/error_message.h"
#include "tests/processors.h"
#include "tests/run_program.h"

using namespace staircase;

/// The formula, with counts: logit - penalty · (count > 0).
std::vector<float> naive(std::vector<float> logits, const std::vector<int>& tokens, float penalty) {
  std::map<int, int> counts;
  for (const int token : tokens) ++counts[token];
  for (const auto& [token, count] : counts) logits[token] -= count > 0 ? penalty : 0.0f;
  return logits;
}

TEST_CASE("each token that has occurred pays once, however often it has") {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  for (int run = 0; run < 50; ++run) {
    std::vector<float> raw(200);
    for (float& logit : raw) logit = normal(generator);
    std::vector<int> tokens(run);
    for (int& token : tokens) token = static_cast<int>(generator() % 60 + generator() % 140);
    for (const float penalty : {0.5f, 2.0f, -1.0f}) {
      std::vector<float> logits = raw;
      apply_presence_penalty(logits, tokens, penalty);
      CHECK(difference("logits", logits, naive(raw, tokens, penalty), raw.size(), 1e-4) == "");
    }
  }
}

TEST_CASE("a penalty of 0 changes no bit") {
  for (const char* const vector : kVectors) {
    std::vector<float> logits = raw_logits(vector);
    apply_presence_penalty(logits, tokens_before(vector), 0.0f);
    CHECK(logits == raw_logits(vector));
    process(logits, tokens_before(vector), {});
    CHECK(logits == raw_logits(vector));
  }
}

TEST_CASE("a negative penalty makes earlier tokens more likely") {
  std::vector<float> logits{0.0f, 0.0f, 0.0f};
  process(logits, std::vector{1, 1}, {.presence_penalty = -1.5f});
  CHECK(logits == std::vector{0.0f, 1.5f, 0.0f});
}

TEST_CASE("the penalty comes before the temperature") {
  std::vector<float> logits{0.0f, 0.0f};
  process(logits, std::vector{1}, {.presence_penalty = 1.0f, .temperature = 0.5f});
  CHECK(logits == std::vector{0.0f, -2.0f});
}

/// Processors of the reference, in the order of the chain.
void process_steps(const std::vector<nlohmann::json>& steps, std::span<float> logits,
                   std::span<const int> tokens) {
  SamplingOptions options;
  for (const auto& step : steps) {
    if (step["op"] == "presence_frequency") options.presence_penalty = step["presence"];
    if (step["op"] == "temperature") options.temperature = step["value"];
    if (step["op"] == "top_k") options.top_k = step["value"];
    if (step["op"] == "top_p") options.top_p = step["value"];
  }
  process(logits, tokens, options);
}

TEST_CASE("the kept tokens and their probabilities agree with Hugging Face's processors") {
  CHECK(difference_from_processors({"temperature", "top_k", "top_p", "presence"}, 68, process_steps) == "");
}

TEST_CASE("without its options the step chooses what Hugging Face's greedy decoding chooses") {
  CHECK(difference_from_greedy([](const std::vector<int>& prompt, int count) {
          std::mt19937 generator(0);
          const TextOptions options{.stopping = {.max_new_tokens = count}};
          return tokens_after(prompt.size(),
                              generate(tales(), prompt, options, generator, [](const Token&) {}).tokens);
        }) == "");
}

TEST_CASE("prompt and output both count") {
  // The candidates of each token must have been chosen from the logits with the penalty on all tokens before
  // it.
  const SamplingOptions sampling{.presence_penalty = 1.5f, .show_candidates = 5};
  const TextOptions options{.stopping = {.max_new_tokens = 12, .ignore_eos = true}, .sampling = sampling};
  const std::vector<int> prompt = tokens_before("model");
  std::mt19937 generator(0);
  std::vector<Token> reported;
  const std::vector<int> tokens = generate(tales(), prompt, options, generator, [&](const Token& token) {
                                    reported.push_back(token);
                                  }).tokens;
  REQUIRE(reported.size() == 12);
  for (std::size_t i = 0; i < reported.size(); ++i) {
    const std::span<const int> before = std::span(tokens).first(prompt.size() + i);
    const std::span<const float> raw = tales().next_logits(before);
    const std::vector<float> logits = naive({raw.begin(), raw.end()}, {before.begin(), before.end()}, 1.5f);
    const std::vector<double> probabilities = exact_softmax(logits);
    CHECK(reported[i].id == argmax(logits));
    for (const Candidate& candidate : reported[i].candidates) {
      CHECK(std::abs(static_cast<double>(candidate.probability) - probabilities[candidate.token_id]) < 1e-5);
    }
  }
}

TEST_CASE("a token that has left the window still counts") {
  std::vector<int> prompt(static_cast<std::size_t>(tales().config().n_positions), 100);
  std::mt19937 generator(0);
  const auto next = [&](const SamplingOptions& sampling) {
    const TextOptions options{.stopping = {.max_new_tokens = 1}, .sampling = sampling};
    return generate(tales(), prompt, options, generator, [](const Token&) {}).tokens.back();
  };
  const int best = next({});
  prompt.insert(prompt.begin(), best);  // outside the window: the logits stay the same
  REQUIRE(next({}) == best);
  CHECK(next({.presence_penalty = 1e30f}) != best);
}

TEST_CASE("a huge penalty crashes nothing, and an error follows if no token is left") {
  const std::vector<int> all{0, 1, 2, 0, 1, 2};
  std::mt19937 generator(0);
  for (const float penalty : {1e30f, 3e38f, HUGE_VALF}) {
    CAPTURE(penalty);
    const SamplingOptions options{.do_sample = true, .presence_penalty = penalty};
    std::vector<float> logits{1.0f, -1.0f, 0.5f, 0.25f};
    process(logits, all, options);
    CHECK(choose(logits, options, generator) == 3);
  }
  std::vector<float> logits{1.0f, -1.0f, 0.5f};
  process(logits, all, {.presence_penalty = HUGE_VALF});
  CHECK(
      says(error_message([&] { choose(logits, {.do_sample = true}, generator); }), "no token can be chosen"));
}

TEST_CASE("near temperature 0 only the most likely token is left, whichever it is") {
  for (std::size_t best = 0; best < 4; ++best) {
    std::vector<float> logits(4, 1.0f), wanted(4, kMasked);
    wanted[best] = logits[best] = 2.0f;
    apply_temperature(logits, 0.0f);
    CHECK(logits == wanted);
  }
}

TEST_CASE("--presence-penalty outside its range is refused before any work") {
  const std::string option = "--model /nonexistent --presence-penalty=";
  for (const std::string value : {"2.5", "-2.01", "inf", "nan"}) {
    const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, option + value);
    CHECK(refused.status == 2);
    CHECK(refused.out == "");
    CHECK(refused.err ==
          fmt::format("error: --presence-penalty is {}, but it must be between -2 and 2\n", value));
  }
  for (const std::string value : {"-2", "0", "2"}) {
    const ProgramRun accepted = run_program(STAIRCASE_STEP_PROGRAM, option + value);
    CHECK(accepted.status == 1);  // the options are accepted, but there is no such model
    CHECK(contains(accepted.err, "/nonexistent"));
  }
}
