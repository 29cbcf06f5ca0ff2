#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "generate.h"
#include "tests/chi_square.h"
#include "tests/processors.h"
#include "tests/run_program.h"

using namespace staircase;

/// How often each of `size` tokens comes up in `count` draws.
template <typename Draw>
std::vector<int> counts_of(const Draw& draw, std::size_t size, int count) {
  std::vector<int> counts(size);
  for (int i = 0; i < count; ++i) ++counts.at(static_cast<std::size_t>(draw()));
  return counts;
}

/// How many random numbers `work` takes, if they are fewer than 100.
template <typename Work>
int numbers_used(const Work& work) {
  std::mt19937 generator(5), same(5);
  work(generator);
  int count = 0;
  for (; generator != same && count < 100; ++count) same.discard(1);
  return count;
}

// A correct draw falls below this once in a thousand tests. The seeds are fixed, so it is always the same
// test.
constexpr double kTooUnlikely = 1e-3;

TEST_CASE("each token is drawn in proportion to its probability") {
  const std::vector<float> distributions[] = {
      {0.5f, 0.25f, 0.125f, 0.125f},
      {0.0f, 0.1f, 0.0f, 0.9f, 0.0f},
      {0.001f, 0.002f, 0.997f},
      std::vector<float>(100, 0.01f),
  };
  for (const std::vector<float>& probabilities : distributions) {
    for (const unsigned seed : {1u, 2u, 3u}) {
      std::mt19937 generator(seed);
      const auto counts =
          counts_of([&] { return draw(probabilities, generator); }, probabilities.size(), 200'000);
      CHECK(p_value(counts, probabilities) > kTooUnlikely);
    }
  }
}

TEST_CASE("a draw that is slightly wrong would be noticed") {
  const std::vector<float> probabilities{0.5f, 0.25f, 0.125f, 0.125f};
  std::mt19937 generator(1);
  const auto p_of = [&](const auto& wrong) { return p_value(counts_of(wrong, 4, 200'000), probabilities); };
  CHECK(p_of([&] { return (draw(probabilities, generator) + 1) % 4; }) < 1e-9);
  CHECK(p_of([&] { return std::min(draw(probabilities, generator), 2); }) < 1e-9);
  const std::vector<float> skewed{0.49f, 0.26f, 0.125f, 0.125f};
  CHECK(p_of([&] { return draw(skewed, generator); }) < 1e-9);
}

TEST_CASE("a token without probability is never drawn, not even by a rounding error") {
  std::mt19937 generator(3);
  const std::vector<float> edges{0.0f, 0.5f, 0.0f, 0.5f, 0.0f};
  const std::vector<float> short_of_one{0.0f, 0.25f, 0.25f, 0.0f};  // half of the numbers fall into no share
  for (int i = 0; i < 20'000; ++i) {
    const int edge = draw(edges, generator), middle = draw(short_of_one, generator);
    CAPTURE(edge);
    CAPTURE(middle);
    CHECK(edge % 2 == 1);
    CHECK(std::clamp(middle, 1, 2) == middle);
  }
  CHECK(draw(std::vector{1.0f}, generator) == 0);
}

TEST_CASE("a draw uses as many random bits as a double holds") {
  const double uniform = 0.3745401188473625;  // the first number of NumPy's RandomState(42)
  const float most = std::nextafter(static_cast<float>(uniform), 0.0f);
  const auto rest = static_cast<float>(uniform - static_cast<double>(most));
  for (const float wide : {0.0f, 1.0f}) {
    std::mt19937 generator(42);
    // The first two shares together end just below the random number, or just above it.
    const float share = std::nextafter(std::nextafter(rest, wide), wide);
    CHECK(draw(std::vector{most, share, 0.625f}, generator) == (wide == 0.0f ? 2 : 1));
  }
}

TEST_CASE("a draw takes two random numbers, whatever it draws") {
  CHECK(numbers_used([](std::mt19937& generator) { draw(std::vector{1.0f}, generator); }) == 2);
  CHECK(numbers_used([](std::mt19937& generator) { draw(std::vector{0.25f, 0.75f}, generator); }) == 2);
}

TEST_CASE("a seed gives the same tokens with every compiler") {
  // NumPy's RandomState(42).random_sample() has the same generator and turns it into the same 53 bits.
  const std::vector<int> want{2, 3, 3, 2, 1, 1, 0, 3, 3, 3, 0, 3, 3, 1, 1, 1, 2, 2, 2, 1, 3, 1, 1, 2};
  std::mt19937 generator(42);
  for (const int token : want) CHECK(draw(std::vector{0.1f, 0.2f, 0.3f, 0.4f}, generator) == token);
}

/// Processors of the reference, in the order of the chain.
void process_steps(const std::vector<nlohmann::json>& steps, std::span<float> logits, std::span<const int>) {
  SamplingOptions options;
  for (const auto& step : steps) {
    if (step["op"] == "temperature") options.temperature = step["value"];
  }
  process(logits, options);
}

TEST_CASE("the kept tokens and their probabilities agree with Hugging Face's processors") {
  CHECK(difference_from_processors({"temperature"}, 8, process_steps) == "");
}

TEST_CASE("without its options the step chooses what Hugging Face's greedy decoding chooses") {
  CHECK(difference_from_greedy([](const std::vector<int>& prompt, int count) {
          std::mt19937 generator(0);
          const TextOptions options{.stopping = {.max_new_tokens = count}};
          return tokens_after(prompt.size(),
                              generate(tales(), prompt, options, generator, [](const Token&) {}).tokens);
        }) == "");
}

TEST_CASE("the first token of a text is drawn with the model's probabilities") {
  const std::vector<int> prompt = tokens_before("model");
  const std::span<const float> logits = tales().next_logits(std::span(prompt).first(1));
  for (const float temperature : {0.7f, 1.0f, 1.5f}) {
    std::vector<float> processed(logits.begin(), logits.end());
    const SamplingOptions options{.do_sample = true, .temperature = temperature};
    process(processed, options);
    std::mt19937 generator(7);
    const auto counts =
        counts_of([&] { return choose(processed, options, generator); }, processed.size(), 100'000);
    const std::vector<double> exact = exact_softmax(processed);
    CHECK(p_value(counts, std::vector<float>(exact.begin(), exact.end())) > kTooUnlikely);
  }
}

TEST_CASE("without --do-sample no random number is used") {
  CHECK(numbers_used([](std::mt19937& generator) {
          CHECK(choose(std::vector{1.0f, 2.0f, 2.0f}, {}, generator) == 1);
        }) == 0);
}

/// 24 drawn tokens.
std::vector<int> drawn(unsigned seed, float temperature = 1.0f) {
  std::mt19937 generator(seed);
  const TextOptions options{.stopping = {.max_new_tokens = 24, .ignore_eos = true},
                            .sampling = {.do_sample = true, .temperature = temperature}};
  return generate(tales(), {100}, options, generator, [](const Token&) {}).tokens;
}

TEST_CASE("the same seed gives the same text, another seed another one") {
  CHECK(drawn(1) == drawn(1));
  CHECK(drawn(1) != drawn(2));
  CHECK(drawn(1) != drawn(1, 1.5f));
}

TEST_CASE("a temperature of 0 draws the greedy text") {
  std::mt19937 generator(0);
  const TextOptions options{.stopping = {.max_new_tokens = 24, .ignore_eos = true}};
  const std::vector<int> greedy = generate(tales(), {100}, options, generator, [](const Token&) {}).tokens;
  CHECK(drawn(1, 0.0f) == greedy);
  CHECK(drawn(2, 0.0f) == greedy);
}

TEST_CASE("near temperature 0 only the most likely token is left, whichever it is") {
  for (std::size_t best = 0; best < 4; ++best) {
    std::vector<float> logits(4, 1.0f), wanted(4, kMasked);
    wanted[best] = logits[best] = 2.0f;
    apply_temperature(logits, 0.0f);
    CHECK(logits == wanted);
  }
}

TEST_CASE("--num-return-sequences increments the seed") {
  const auto run = [](const std::string& arguments) {
    const ProgramRun run = run_program(
        STAIRCASE_STEP_PROGRAM, "--json --prompt 'The king' --do-sample --max-new-tokens 12 " + arguments);
    REQUIRE(run.status == 0);
    return run.json()["sequences"];
  };
  const auto sequences = run("--seed 5 --num-return-sequences 3");
  REQUIRE(sequences.size() == 3);
  for (unsigned i = 0; i < 3; ++i) CHECK(sequences[i] == run(fmt::format("--seed {}", 5 + i))[0]);
  CHECK(sequences[0]["token_ids"] != sequences[1]["token_ids"]);
}
