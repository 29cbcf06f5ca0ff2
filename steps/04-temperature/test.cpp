#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "generate.h"
#include "tests/error_message.h"
#include "tests/processors.h"

using namespace staircase;

/// Processors of the reference, in the order of the chain.
void process_steps(const std::vector<nlohmann::json>& steps, std::span<float> logits, std::span<const int>) {
  SamplingOptions options;
  for (const auto& step : steps) {
    if (step["op"] == "temperature") options.temperature = step["value"];
  }
  process(logits, options);
}

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST_CASE("a temperature near 0 leaves the most likely token, the lowest id among equals") {
  for (const float temperature : {0.0f, 1e-6f}) {
    for (const char* const vector : kVectors) {
      std::vector<float> logits = raw_logits(vector);
      const int best = argmax(logits);
      process(logits, {.temperature = temperature});
      CHECK(ranking(logits) == std::vector{best});
    }
    std::vector<float> equal{1.0f, 3.0f, 2.0f, 3.0f};
    process(equal, {.temperature = temperature});
    CHECK(ranking(equal) == std::vector{1});
  }
}

TEST_CASE("a temperature of 1 changes no bit") {
  for (const char* const vector : kVectors) {
    std::vector<float> logits = raw_logits(vector);
    process(logits, {});
    CHECK(logits == raw_logits(vector));
  }
}

TEST_CASE("no temperature changes which token is the most likely") {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  for (int run = 0; run < 200; ++run) {
    std::vector<float> logits(1000);
    for (float& logit : logits) logit = normal(generator);
    const int best = argmax(logits);
    for (const float temperature : {0.0f, 1e-4f, 0.05f, 0.1f, 0.7f, 1.0f, 1.5f, 100.0f}) {
      std::vector<float> scaled = logits;
      process(scaled, {.temperature = temperature});
      CHECK(argmax(scaled) == best);
    }
  }
}

TEST_CASE("a low temperature overflows nowhere, even for logits as large as a float can hold") {
  for (const float temperature : {1e-5f, 1e-4f, 1e-3f, 0.01f, 0.05f, 0.0999f}) {
    for (const float scale : {1.0f, 1e4f, 1e20f, 1e37f}) {
      std::vector<float> logits = raw_logits("normal");
      for (float& logit : logits) logit *= scale / 10.0f;
      const int best = argmax(logits);
      process(logits, {.temperature = temperature});
      CAPTURE(temperature);
      CAPTURE(scale);
      CHECK(logits[best] == 0.0f);
      CHECK(std::none_of(logits.begin(), logits.end(),
                         [](float logit) { return std::isnan(logit) || logit > 0.0f; }));
      CHECK(likeliest(logits, 1).at(0).token_id == best);
    }
  }
}

TEST_CASE("the shift of a low temperature changes no probability") {
  for (const float temperature : {0.05f, 0.0999f}) {
    std::vector<float> logits = raw_logits("model");
    std::vector<double> want(logits.begin(), logits.end());
    double sum = 0.0;
    const double largest = *std::max_element(want.begin(), want.end());
    for (double& value : want) sum += value = std::exp((value - largest) / static_cast<double>(temperature));
    for (double& value : want) value /= sum;
    process(logits, {.temperature = temperature});
    CHECK(difference("probabilities", softmax(logits), want, want.size(), 1e-5) == "");
  }
}

TEST_CASE("nonsense for a temperature crashes nothing") {
  std::vector<float> logits = raw_logits("normal");
  const int best = argmax(logits);
  process(logits, {.temperature = -1.0f});
  CHECK(ranking(logits) == std::vector{best});
  logits = raw_logits("normal");
  process(logits, {.temperature = HUGE_VALF});
  CHECK(ranking(logits).size() == logits.size());
  CHECK(likeliest(logits, 1).at(0).probability == doctest::Approx(1.0 / 4096.0));
  logits = raw_logits("normal");
  process(logits, {.temperature = kNaN});
  CHECK(says(error_message([&] { likeliest(logits, 1); }), "no token can be chosen"));
  for (const float temperature : {-1.0f, -HUGE_VALF, HUGE_VALF, kNaN}) {
    const TextOptions options{.stopping = {.max_new_tokens = 2}, .sampling = {.temperature = temperature}};
    CHECK(generate(tales(), {100}, options, [](const Token&) {}).tokens.size() <= 3);
  }
}

TEST_CASE("the kept tokens and their probabilities agree with Hugging Face's processors") {
  CHECK(difference_from_processors({"temperature"}, 8, process_steps) == "");
}

TEST_CASE("whatever the temperature, the text stays the greedy one") {
  for (const float temperature : {0.0f, 0.5f, 1.0f, 2.0f}) {
    CAPTURE(temperature);
    CHECK(difference_from_greedy([&](const std::vector<int>& prompt, int count) {
            const TextOptions options{.stopping = {.max_new_tokens = count},
                                      .sampling = {.temperature = temperature}};
            return tokens_after(prompt.size(),
                                generate(tales(), prompt, options, [](const Token&) {}).tokens);
          }) == "");
  }
}

TEST_CASE("--show-candidates reports the most likely tokens with each new one") {
  const TextOptions options{.stopping = {.max_new_tokens = 3},
                            .sampling = {.temperature = 2.0f, .show_candidates = 5}};
  std::vector<Token> reported;
  const std::vector<int> tokens =
      generate(tales(), {100}, options, [&](const Token& token) { reported.push_back(token); }).tokens;
  REQUIRE(reported.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    std::vector<float> logits = copy_of(tales().next_logits(std::span(tokens).first(i + 1)));
    process(logits, options.sampling);
    const std::vector<int> ids = ranking(logits);
    const std::vector<double> probabilities = exact_softmax(logits);
    REQUIRE(reported[i].candidates.size() == 5);
    CHECK(reported[i].candidates[0].token_id == reported[i].id);
    for (std::size_t c = 0; c < 5; ++c) {
      const Candidate& candidate = reported[i].candidates[c];
      CHECK(candidate.token_id == ids[c]);
      CHECK(static_cast<double>(candidate.probability) == doctest::Approx(probabilities[candidate.token_id]));
    }
  }
  generate(tales(), {100}, {.stopping = {.max_new_tokens = 1}},
           [](const Token& token) { CHECK(token.candidates.empty()); });
}
