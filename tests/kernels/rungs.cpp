// Every rung of the CPU's ladders computes what plain loops in double precision do.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/kernels/naive.h"
#include "tests/kernels/rung_cases.h"

using namespace staircase;
using namespace staircase::rungs;

namespace {

std::vector<float> product(const Rung& rung, const ProductShape& shape, const naive::Values& x,
                           const naive::Values& w, ThreadTeam& team) {
  const std::unique_ptr<Product> prepared = rung.prepare(shape, w.data(), team);
  bool stays_inside = false;
  std::vector<float> y = results_of(
      shape.rows * shape.n_out, [&](float* to) { prepared->run(x.data(), to); }, stays_inside);
  CHECK(stays_inside);
  return y;
}

naive::Doubles expected(const ProductShape& shape, const naive::Values& x, const naive::Values& w) {
  return naive::linear(x, w, {}, static_cast<std::size_t>(shape.rows), static_cast<std::size_t>(shape.n_in),
                       static_cast<std::size_t>(shape.n_out));
}

/// All rungs that this processor can run, for the shapes that are theirs.
template <typename Check>
void each_rung(const std::vector<ProductShape>& shapes, const Check& check) {
  for (const bool one_row : {true, false}) {
    for (const Rung& rung : one_row ? matvec_ladder() : product_ladder()) {
      if (rung.prepare == nullptr) continue;
      for (const ProductShape& shape : shapes) {
        if (one_row && shape.rows > 1) continue;
        CAPTURE(one_row);
        CAPTURE(rung.name);
        CAPTURE(shape.rows);
        CAPTURE(shape.n_in);
        CAPTURE(shape.n_out);
        check(rung, shape, one_row);
      }
    }
  }
}

}  // namespace

TEST_CASE("every rung multiplies whole numbers exactly, in every type and odd size") {
  ThreadTeam team(3);
  each_rung(kOddProducts, [&](const Rung& rung, const ProductShape& shape, bool) {
    const Wholes numbers(shape);
    const std::vector<float> y = product(rung, shape, numbers.x, numbers.w, team);
    const naive::Doubles sums = expected(shape, numbers.x, numbers.w);
    REQUIRE(y.size() == sums.size());
    for (std::size_t i = 0; i < y.size(); ++i) {
      CAPTURE(i);
      REQUIRE(static_cast<double>(y[i]) == sums[i]);
    }
  });
}

TEST_CASE("every rung rounds as finely as its type") {
  ThreadTeam team(2);
  each_rung({{1, 500, 200}, {9, 500, 200}}, [&](const Rung& rung, const ProductShape& shape, bool of_matvec) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    naive::Values x(static_cast<std::size_t>(shape.rows * shape.n_in)),
        w(static_cast<std::size_t>(shape.n_in * shape.n_out));
    for (float& value : x) value = normal(random);
    for (float& value : w) value = normal(random);
    const std::vector<float> y = product(rung, shape, x, w, team);
    const naive::Doubles sums = expected(shape, x, w);
    double squares = 0.0, size = 0.0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      squares += std::pow(static_cast<double>(y[i]) - sums[i], 2.0);
      size += std::pow(sums[i], 2.0);
    }
    // Rounded to bfloat16, a number is wrong by 2^-9 at most. In 8 bits the step is a 127th of the largest of
    // 32 normal numbers, some 2.1. An error is a step / sqrt(12) on average: 0.48 %, or 0.68 % if both sides
    // are rounded. With one scale for all 500 inputs it would be 0.68 % and 0.97 %.
    const bool is_int8 = rung.name.find("int8") != std::string_view::npos;
    const bool is_bfloat16 = rung.name.find("bfloat16") != std::string_view::npos || rung.name == "9-amx";
    const bool only_weights = of_matvec && rung.name == "8-int8";
    const double error = std::sqrt(squares / size);
    const double most = only_weights ? 0.0055 : is_int8 ? 0.0078 : is_bfloat16 ? 0.003 : 1e-6;
    CHECK(error < most);
    if (most > 1e-3) CHECK(error > most / 4);  // it is the type that it says
  });
}

TEST_CASE("a rung of zeros is zero, and its weights take the bytes of their type") {
  ThreadTeam team(1);
  const ProductShape shape{1, 64, 128};
  const naive::Values x(64), w(64 * 128);
  for (const Rung& rung : matvec_ladder()) {
    if (rung.prepare == nullptr) continue;
    CAPTURE(rung.name);
    CHECK(product(rung, shape, x, w, team) == std::vector<float>(128));
    const bool few = rung.name.find("int8") != std::string_view::npos, half = rung.name == "7-bfloat16";
    CHECK(rung.prepare(shape, w.data(), team)->weight_bytes() == (few    ? 64 * 128 + 2 * 128 * 4
                                                                  : half ? 64 * 128 * 2
                                                                         : 64 * 128 * 4));
  }
}

namespace {

/// Section 3.2.1 of Vaswani et al. 2017, word for word, for each token with the positions up to its own.
std::vector<double> attention_of(const PromptShape& shape, const Heads& heads) {
  std::vector<double> out;
  const std::int64_t size = shape.head_size;
  for (std::int64_t row = 0; row < shape.tokens * shape.n_head; ++row) {
    const std::int64_t h = row % shape.n_head, seen = shape.positions - shape.tokens + row / shape.n_head + 1;
    const auto first = static_cast<std::size_t>(h / shape.group() * shape.positions * size);
    std::vector<double> weights;
    double sum = 0.0, largest = -1e300;
    for (std::int64_t p = 0; p < seen; ++p) {
      double score = 0.0;
      for (std::int64_t f = 0; f < size; ++f)
        score += static_cast<double>(heads.queries[static_cast<std::size_t>(row * size + f)]) *
                 static_cast<double>(heads.keys[first + static_cast<std::size_t>(p * size + f)]);
      weights.push_back(score / std::sqrt(static_cast<double>(size)));
      largest = std::max(largest, weights.back());
    }
    for (double& weight : weights) sum += weight = std::exp(weight - largest);
    for (std::int64_t f = 0; f < size; ++f) {
      double mean = 0.0;
      for (std::int64_t p = 0; p < seen; ++p)
        mean += weights[static_cast<std::size_t>(p)] / sum *
                static_cast<double>(heads.values[first + static_cast<std::size_t>(p * size + f)]);
      out.push_back(mean);
    }
  }
  return out;
}

std::vector<float> attention_of(const AttentionRung& rung, const AttentionShape& shape, const Heads& heads,
                                ThreadTeam& team) {
  const std::unique_ptr<Attention> prepared =
      rung.prepare(shape, heads.keys.data(), heads.values.data(), team);
  bool stays_inside = false;
  std::vector<float> out = results_of(
      std::ssize(heads.queries), [&](float* to) { prepared->run(heads.queries.data(), to); }, stays_inside);
  CHECK(stays_inside);
  return out;
}

}  // namespace

TEST_CASE("every rung of attention is the formula, for any heads, positions and sizes of scores") {
  ThreadTeam team(3);
  unsigned seed = 0;
  for (const AttentionShape& shape : kOddHeads) {
    for (const float of_queries : {0.0f, 1.0f, 8.0f, 200.0f}) {
      const Heads heads(shape, of_queries, ++seed);
      const std::vector<double> expected = attention_of(PromptShape{shape, 1}, heads);
      for (const AttentionRung& rung : attention_ladder()) {
        CAPTURE(rung.name);
        CAPTURE(shape.n_head);
        CAPTURE(shape.positions);
        CAPTURE(of_queries);
        const std::vector<float> out = attention_of(rung, shape, heads, team);
        REQUIRE(out.size() == expected.size());
        double most = 0.0;
        for (std::size_t i = 0; i < out.size(); ++i) {
          REQUIRE(std::isfinite(out[i]));
          most = std::max(most, std::abs(static_cast<double>(out[i]) - expected[i]));
        }
        const double tolerance = tolerance_of_attention(rung.name, of_queries);
        if (tolerance > 0.0) CHECK(most < tolerance);
      }
    }
  }
}

TEST_CASE("a later score that is much larger takes all weight, and equal scores share it") {
  ThreadTeam team(2);
  const AttentionShape shape{2, 1, 16, 150};
  for (const std::int64_t largest : {0, 63, 64, 149}) {
    Heads heads(shape, 0.0f, 1);
    heads.queries[0] = 1.0f;  // the first head reads feature 0; for the second, all scores are 0
    for (std::int64_t p = 0; p < shape.positions; ++p)
      heads.keys[static_cast<std::size_t>(p * 16)] = p == largest ? 1e6f : -1e6f;
    double mean = 0.0;
    for (std::int64_t p = 0; p < shape.positions; ++p)
      mean += static_cast<double>(heads.values[static_cast<std::size_t>(p * 16)]) / 150.0;
    for (const AttentionRung& rung : attention_ladder()) {
      CAPTURE(rung.name);
      CAPTURE(largest);
      const std::vector<float> out = attention_of(rung, shape, heads, team);
      const double error = rung.name == "10-bfloat16" ? 0.02 : 1e-6;
      CHECK(out[0] == doctest::Approx(heads.values[static_cast<std::size_t>(largest * 16)]).epsilon(error));
      CHECK(std::abs(static_cast<double>(out[16]) - mean) < error);
    }
  }
}

TEST_CASE("the caches of attention take the bytes of their type") {
  ThreadTeam team(1);
  const AttentionShape shape{4, 2, 32, 64};  // whole panels
  const Heads heads(shape, 1.0f, 1);
  int number = 1;
  for (const AttentionRung& rung : attention_ladder()) {
    CAPTURE(rung.name);
    CHECK(rung.name.starts_with(std::to_string(number++) + "-"));
    CHECK(rung.prepare(shape, heads.keys.data(), heads.values.data(), team)->cache_bytes() ==
          2 * 2 * 64 * 32 * (rung.name == "10-bfloat16" ? 2 : 4));
  }
}

namespace {

std::vector<float> attention_of(const PrefillRung& rung, const PromptShape& shape, const Heads& heads,
                                ThreadTeam& team) {
  bool stays_inside = false;
  std::vector<float> out = results_of(
      std::ssize(heads.queries), [&](float* to) { rung.run(heads.prompt(shape), team, to); }, stays_inside);
  CHECK(stays_inside);
  return out;
}

}  // namespace

TEST_CASE("every rung of a prompt's attention is the formula, for whole prompts, parts and single tokens") {
  ThreadTeam team(3);
  unsigned seed = 0;
  for (const PromptShape& shape : kOddPrompts) {
    for (const float of_queries : {0.0f, 1.0f, 8.0f, 200.0f}) {
      const Heads heads(shape, of_queries, ++seed);
      const std::vector<double> expected = attention_of(shape, heads);
      for (const PrefillRung& rung : prefill_attention_ladder()) {
        if (rung.run == nullptr) continue;
        CAPTURE(rung.name);
        CAPTURE(shape.tokens);
        CAPTURE(shape.positions);
        CAPTURE(of_queries);
        const std::vector<float> out = attention_of(rung, shape, heads, team);
        REQUIRE(out.size() == expected.size());
        double most = 0.0;
        for (std::size_t i = 0; i < out.size(); ++i) {
          REQUIRE(std::isfinite(out[i]));
          most = std::max(most, std::abs(static_cast<double>(out[i]) - expected[i]));
        }
        const double tolerance = tolerance_of_attention(rung.name, of_queries);
        if (tolerance > 0.0) CHECK(most < tolerance);
        // It is the type that it says.
        if (of_queries == 1.0f && tolerance > 1e-3 && shape.positions > 16) CHECK(most > tolerance / 50);
      }
    }
  }
}

TEST_CASE("a later token changes nothing in the attention of those before it, to the bit") {
  ThreadTeam team(2);
  const PromptShape shape{{2, 1, 16, 130}, 130};
  const Heads heads(shape, 1.0f, 1);
  for (const std::int64_t token : {1, 6, 63, 64, 96, 129}) {
    Heads changed = heads;
    for (std::int64_t i = token * 16; i < 130 * 16; ++i) {
      changed.keys[static_cast<std::size_t>(i)] = 1000.0f;
      changed.values[static_cast<std::size_t>(i)] = -1000.0f;
    }
    for (const PrefillRung& rung : prefill_attention_ladder()) {
      if (rung.run == nullptr) continue;
      CAPTURE(rung.name);
      CAPTURE(token);
      const std::vector<float> before = attention_of(rung, shape, heads, team),
                               after = attention_of(rung, shape, changed, team);
      const auto first = std::mismatch(before.begin(), before.end(), after.begin()).first;
      CHECK(first - before.begin() == token * 2 * 16);  // its own result is the first that differs
    }
  }
}

TEST_CASE("names are numbered in order, and a rung that cannot run says what is lacking") {
  for (const std::span<const Rung> ladder : {matvec_ladder(), product_ladder()}) {
    int number = 1;
    for (const Rung& rung : ladder) {
      CHECK(rung.name.starts_with(std::to_string(number++) + "-"));
      CHECK((rung.prepare == nullptr) == !rung.lacks.empty());
    }
  }
  int number = 1;
  for (const PrefillRung& rung : prefill_attention_ladder()) {
    CHECK(rung.name.starts_with(std::to_string(number++) + "-"));
    CHECK((rung.run == nullptr) == !rung.lacks.empty());
  }
}
