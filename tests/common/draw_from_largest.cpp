// A token that is drawn from the largest logits is the one that the whole row would give, or none is drawn.
#include "common/decoding/draw_from_largest.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "common/decoding/engine.h"

namespace staircase {
namespace {

constexpr std::size_t kVocabulary = 3000;

/// The k largest of a row, found naively.
struct Naive {
  std::vector<std::int32_t> tokens;
  std::vector<float> values;
  LargestLogits largest;

  Naive(const std::vector<float>& row, std::size_t k) {
    for (const int token : highest(row, static_cast<std::int64_t>(k))) {
      tokens.push_back(token);
      values.push_back(row[static_cast<std::size_t>(token)]);
    }
    double sum = 0.0;
    for (const float logit : row) sum += std::exp(static_cast<double>(logit));
    largest = {tokens, values, static_cast<float>(std::log(sum)), row.size()};
  }
};

std::vector<float> random_row(unsigned seed, float spread, std::size_t size = kVocabulary) {
  std::mt19937 random(seed);
  std::vector<float> row(size);
  // A sum of uniform numbers is nearly normal.
  for (float& logit : row) {
    for (int i = 0; i < 6; ++i) logit += spread * static_cast<float>(uniform(random) - 0.5);
  }
  return row;
}

/// In how many of many draws the k largest logits of each row decide. Each token must be that of the whole
/// row, and the generator must move as there, or not at all.
double share_decided(const SamplingOptions& options, std::size_t k, float spread) {
  int decided = 0, draws = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    const std::vector<float> row = random_row(seed, spread);
    const Naive naive(row, k);
    std::vector<float> processed = row;
    process(processed, {}, options);
    const std::vector<float> probabilities = softmax(processed);
    for (unsigned draw_seed = 0; draw_seed < 25; ++draw_seed) {
      std::mt19937 whole(draw_seed), own(draw_seed);
      const auto token = draw_from_largest(naive.largest, options, own);
      ++draws;
      if (!token) {
        CHECK(own == whole);
        continue;
      }
      ++decided;
      CHECK(*token == draw(probabilities, whole));
      CHECK(own == whole);
    }
  }
  return static_cast<double>(decided) / draws;
}

TEST_CASE("with a top-k, as many logits and one more decide nearly every token") {
  for (const float spread : {1.0f, 4.0f, 20.0f}) {
    for (const float temperature : {0.05f, 0.6f, 1.0f, 1.7f}) {
      for (const std::optional<float> top_p : {std::optional<float>(), {0.3f}, {0.95f}}) {
        CAPTURE(spread);
        CAPTURE(temperature);
        const SamplingOptions options{
            .do_sample = true, .temperature = temperature, .top_k = 20, .top_p = top_p};
        CHECK(share_decided(options, 64, spread) > 0.98);
        CHECK(share_decided(options, 21, spread) > 0.95);
      }
    }
  }
}

TEST_CASE("a nucleus is decided by the largest logits if it is among them") {
  const SamplingOptions nucleus{.do_sample = true, .temperature = 1.0f, .top_p = 0.9f};
  CHECK(share_decided(nucleus, 1024, 12.0f) > 0.95);
  SamplingOptions cold = nucleus, warm = nucleus;
  cold.temperature = 0.6f;
  warm.temperature = 1.5f;
  CHECK(share_decided(cold, 1024, 12.0f) > 0.95);
  CHECK(share_decided(warm, 1024, 40.0f) > 0.9);
  CHECK(share_decided(nucleus, 1024, 1.0f) == 0.0);  // 90 % of all tokens belong to it
}

/// The sum that sum_of_others bounds, one logit after another.
double added_up(const std::vector<float>& row, const LargestLogits& largest, double temperature) {
  double sum = 0.0;
  for (int token = 0; token < std::ssize(row); ++token) {
    if (std::ranges::find(largest.tokens, token) != largest.tokens.end()) continue;
    const double logit = row[static_cast<std::size_t>(token)];
    sum += std::exp((logit - largest.values[0]) / temperature);
  }
  return sum;
}

TEST_CASE("the logits that are not there add up to a number between the bounds of their sum") {
  for (const float temperature : {0.05f, 0.3f, 0.7f, 0.99f, 1.0f, 1.01f, 1.7f, 5.0f}) {
    for (const std::size_t k : {1u, 3u, 11u}) {
      for (unsigned seed = 0; seed < 50; ++seed) {
        CAPTURE(temperature);
        CAPTURE(k);
        CAPTURE(seed);
        const std::vector<float> row = random_row(seed, seed % 2 == 0 ? 1.0f : 8.0f, 12);
        const Naive naive(row, k);
        const double sum = added_up(row, naive.largest, temperature);
        const SumRange range = sum_of_others(naive.largest, temperature);
        CHECK_FALSE(range.of_none);
        CHECK(range.least <= sum);
        CHECK(sum <= range.most * (1.0 + 1e-12));
      }
    }
  }
}

TEST_CASE("the bounds are as narrow as what is known allows: where the others equal the last one, all is") {
  for (const float temperature : {0.3f, 0.7f, 1.0f, 1.7f}) {
    CAPTURE(temperature);
    std::vector<float> row(12, 0.5f);
    row[7] = 2.0f;
    const Naive naive(row, 3);
    const double sum = added_up(row, naive.largest, temperature);
    const SumRange range = sum_of_others(naive.largest, temperature);
    CHECK(range.most < sum * 1.001);
    CHECK(range.least > (temperature == 1.0f ? sum * 0.999 : -1.0));
    CHECK(sum_of_others(Naive(row, 12).largest, temperature).of_none);
  }
}

TEST_CASE("nothing is drawn where the logits that are not there could be drawn") {
  const std::vector<float> row = random_row(1, 10.0f);
  const Naive naive(row, 64);
  std::mt19937 generator(1);
  const auto drawn = [&](const SamplingOptions& options) {
    return draw_from_largest(naive.largest, options, generator).has_value();
  };
  CHECK_FALSE(drawn({.do_sample = true}));
  CHECK_FALSE(drawn({.do_sample = true, .temperature = 0.5f}));
  CHECK_FALSE(drawn({.do_sample = true, .top_k = 64}));
  CHECK_FALSE(drawn({.do_sample = true, .top_k = 2000, .top_p = 0.5f}));
  CHECK_FALSE(drawn({.do_sample = true, .top_p = 1.0f}));
  CHECK(drawn({.do_sample = true, .top_k = 63}));
}

TEST_CASE("the whole vocabulary decides whatever the options are") {
  const std::vector<float> row = random_row(1, 6.0f, 50);
  const Naive naive(row, 50);
  for (const auto& options : {SamplingOptions{.do_sample = true},
                              {.do_sample = true, .temperature = 1.5f},
                              {.do_sample = true, .top_k = 50},
                              {.do_sample = true, .top_k = 70},
                              {.do_sample = true, .top_p = 0.9f}}) {
    std::vector<float> processed = row;
    process(processed, {}, options);
    for (unsigned seed = 0; seed < 20; ++seed) {
      std::mt19937 own(seed), whole(seed);
      CHECK(draw_from_largest(naive.largest, options, own) == draw(softmax(processed), whole));
    }
  }
}

TEST_CASE("nothing is drawn if equal logits reach beyond those that are there") {
  std::vector<float> row(100, -5.0f);
  for (std::size_t i = 0; i < 40; ++i) row[i] = 1.0f;
  std::mt19937 generator(1);
  const SamplingOptions top_k{.do_sample = true, .top_k = 3}, top_p{.do_sample = true, .top_p = 0.5f};
  CHECK_FALSE(draw_from_largest(Naive(row, 39).largest, top_k, generator));
  CHECK_FALSE(draw_from_largest(Naive(row, 40).largest, top_k, generator));
  CHECK(draw_from_largest(Naive(row, 41).largest, top_k, generator));
  // Half of 40 equal ones: which of them are the nucleus depends on the order of their probabilities.
  CHECK_FALSE(draw_from_largest(Naive(row, 41).largest, top_p, generator));
  // Two that a temperature makes equal.
  std::vector<float> near(100, -5.0f);
  near[7] = 0.99999994f;
  near[9] = 1.0f;
  CHECK_FALSE(draw_from_largest(Naive(near, 2).largest, {.do_sample = true, .temperature = 1.7f, .top_k = 1},
                                generator));
}

/// How many logits decide a row under options that `set` has changed.
std::size_t needed(const SamplingOptions& sampling) {
  static const Tokenizer tokenizer =
      Tokenizer::load(std::filesystem::path(STAIRCASE_SOURCE_TREE) / "models/tales-1m");
  RowOptions options;
  options.sampling = sampling;
  return logits_needed({0, {1}, options, std::mt19937(1), StopFilter(options.stop, tokenizer)});
}

TEST_CASE("a row requests no more logits than it may need, and all where a few do not decide") {
  CHECK(needed({}) == 1);
  CHECK(needed({.do_sample = true}) == 0);
  CHECK(needed({.do_sample = true, .top_k = 1}) == 2);
  CHECK(needed({.do_sample = true, .top_k = 50, .top_p = 0.9f}) == 51);
  CHECK(needed({.do_sample = true, .top_k = 1023}) == 1024);
  CHECK(needed({.do_sample = true, .top_k = 1024}) == 0);
  CHECK(needed({.do_sample = true, .top_k = 0}) == 0);
  CHECK(needed({.do_sample = true, .top_p = 0.9f}) == 1024);
  CHECK(needed({.do_sample = true, .top_p = 1.0f}) == 0);
  CHECK(needed({.do_sample = true, .presence_penalty = 1.0f, .top_k = 50}) == 0);
  CHECK(needed({.do_sample = true, .top_k = 50, .show_candidates = 3}) == 0);
  CHECK(needed({.do_sample = true, .temperature = 0.0f, .top_k = 50}) == 1);
  CHECK(needed({.top_k = 50}) == 0);
}

}  // namespace
}  // namespace staircase
