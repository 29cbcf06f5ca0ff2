// The chi-square test of the samplers, tested itself.
#include "tests/chi_square.h"

#include <doctest/doctest.h>

#include <vector>

namespace staircase {
namespace {

TEST_CASE("chi_square_p gives the values of the printed tables") {
  struct Row {
    double statistic;
    int degrees;
    double p;
  };
  for (const Row& row : {Row{3.841459, 1, 0.05}, Row{6.634897, 1, 0.01}, Row{0.3518463, 3, 0.95},
                         Row{18.30704, 10, 0.05}, Row{29.58830, 10, 0.001}, Row{2.155856, 10, 0.995},
                         Row{124.3421, 100, 0.05}, Row{67.32756, 100, 0.995}, Row{1074.679, 1000, 0.05}}) {
    CAPTURE(row.statistic);
    CHECK(chi_square_p(row.statistic, row.degrees) == doctest::Approx(row.p).epsilon(1e-5));
  }
  CHECK(chi_square_p(0.0, 5) == 1.0);
  CHECK(chi_square_p(1e5, 5) == 0.0);
}

TEST_CASE("p_value is high for counts that fit and 0 for a token that cannot be drawn") {
  const std::vector<float> probabilities{0.5f, 0.0f, 0.3f, 0.2f};
  CHECK(p_value(std::vector{500, 0, 300, 200}, probabilities) == doctest::Approx(1.0));
  CHECK(p_value(std::vector{500, 1, 300, 199}, probabilities) == 0.0);
  // (30² / 500 + 30² / 300) = 4.8 with 2 degrees of freedom: exp(-2.4)
  CHECK(p_value(std::vector{530, 0, 270, 200}, probabilities) == doctest::Approx(0.0907180).epsilon(1e-5));
}

TEST_CASE("tokens that are expected fewer than 5 times count together") {
  std::vector<float> probabilities(101, 0.001f);
  probabilities[0] = 0.9f;
  std::vector<int> counts(101, 1);
  counts[0] = 900;
  CHECK(p_value(counts, probabilities) == doctest::Approx(1.0));
  counts.assign(101, 0);
  counts[0] = 900;
  counts[1] = 100;  // all in one of them, which its own bin would reveal: a price of the pooling
  CHECK(p_value(counts, probabilities) == doctest::Approx(1.0));
}

}  // namespace
}  // namespace staircase
