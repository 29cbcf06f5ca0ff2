// From logits to probabilities, and the largest of them.
#include "common/decoding/probabilities.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "tests/error_message.h"

namespace staircase {
namespace {

/// Multiples of 1/`parts` around 0: many of them are equal.
std::vector<float> with_ties(std::size_t size, float parts, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<float> values(size);
  for (float& value : values)
    value = std::round(static_cast<float>(generator() % 1000) / 50.0f * parts) / parts;
  return values;
}

TEST_CASE("a token that never comes adds nothing to a divergence, whatever is expected of it") {
  const std::vector<float> p{0.0f, 1.0f, 0.0f}, q{0.5f, 0.5f, 0.0f};
  CHECK(kl_divergence(p, q) == doctest::Approx(std::log(2.0)));
}

TEST_CASE("kth_largest equals a full sort") {
  for (const std::size_t size : {1u, 2u, 63u, 64u, 65u, 200u, 1000u}) {
    for (const float parts : {0.1f, 1.0f, 1000.0f}) {
      const std::vector<float> values = with_ties(size, parts, 1);
      std::vector<float> sorted = values;
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      for (std::size_t k = 1; k <= size; k += 1 + k / 10) {
        CHECK(kth_largest(values, static_cast<int>(k)) == sorted[k - 1]);
      }
    }
  }
}

TEST_CASE("kth_largest counts masked values like any other") {
  std::vector<float> values(300, -HUGE_VALF);
  values[5] = values[299] = 1.0f;
  CHECK(kth_largest(values, 2) == 1.0f);
  CHECK(kth_largest(values, 3) == -HUGE_VALF);
}

TEST_CASE("likely_enough finds every token that is likely enough, by id") {
  for (const std::size_t size : {0u, 1u, 63u, 64u, 65u, 130u, 1000u}) {
    const std::vector<float> values = with_ties(size, 10.0f, 2);
    for (const float least : {-1.0f, 0.0f, 3.0f, 19.9f, 21.0f}) {
      std::vector<int> want, got;
      for (std::size_t i = 0; i < size; ++i) {
        if (values[i] >= least) want.push_back(static_cast<int>(i));
      }
      for (const Candidate& candidate : likely_enough(values, least)) {
        got.push_back(candidate.token_id);
        CHECK(candidate.probability == values[static_cast<std::size_t>(candidate.token_id)]);
      }
      CHECK(got == want);
    }
  }
}

TEST_CASE("highest is the beginning of a full sort, masked values last") {
  for (const std::size_t size : {0u, 1u, 64u, 65u, 200u, 1000u}) {
    for (const float parts : {0.1f, 1000.0f}) {
      std::vector<float> values = with_ties(size, parts, 3);
      for (std::size_t i = 0; i < size; i += 3) values[i] = -HUGE_VALF;
      std::vector<int> sorted(size);
      std::iota(sorted.begin(), sorted.end(), 0);
      std::stable_sort(sorted.begin(), sorted.end(), [&](int a, int b) {
        return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
      });
      for (const std::size_t count : {0u, 1u, 7u, 900u, 2000u}) {
        CHECK(highest(values, static_cast<int>(count)) ==
              std::vector<int>(sorted.begin(),
                               sorted.begin() + static_cast<std::ptrdiff_t>(std::min(size, count))));
      }
    }
  }
}

TEST_CASE("if no logit is left, softmax throws a sentence") {
  const auto message = [](const std::vector<float>& logits) {
    return error_message([&] { softmax(logits); });
  };
  CHECK(says(message({-HUGE_VALF, -HUGE_VALF}), "no token can be chosen"));
  CHECK(says(message({0.0f, std::nanf("")}), "no token can be chosen"));
  CHECK(says(message({}), "no token can be chosen"));
  CHECK(message({0.0f, -HUGE_VALF}) == "");
}

TEST_CASE("uniform numbers are those that numpy draws with the same seed, to the last bit") {
  std::mt19937 generator(1);  // numpy.random.RandomState(1).random_sample(3)
  for (const double number : {0.417022004702574, 0.7203244934421581, 0.00011437481734488664}) {
    CHECK(uniform(generator) == number);
  }
}

TEST_CASE("likeliest() is in descending order, with the lowest id first among ties") {
  const std::vector<float> logits{std::log(1.0f), std::log(3.0f), -HUGE_VALF, std::log(3.0f), std::log(2.0f)};
  const std::vector<Candidate> candidates = likeliest(logits, 10);
  REQUIRE(candidates.size() == 4);
  const int ids[] = {1, 3, 4, 0};
  const float probabilities[] = {3 / 9.0f, 3 / 9.0f, 2 / 9.0f, 1 / 9.0f};
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(candidates[i].token_id == ids[i]);
    CHECK(candidates[i].probability == doctest::Approx(probabilities[i]));
  }
  CHECK(likeliest(logits, 2).size() == 2);
  CHECK(likeliest(logits, 0).empty());
  CHECK(likeliest(logits, -1).empty());
}

}  // namespace
}  // namespace staircase
