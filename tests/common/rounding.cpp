#include "common/measure/rounding.h"

#include <doctest/doctest.h>

#include <cmath>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "tests/step.h"

namespace staircase {
namespace {

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  return {std::istream_iterator<std::string>(stream), {}};
}

TEST_CASE("an error is relative to the numbers themselves") {
  const std::vector<float> values{3.0f, -4.0f}, moved{3.0f, -3.0f};
  CHECK(relative_error(values, moved) == doctest::Approx(1.0 / 5.0));
  CHECK(relative_error(values, values) == 0.0);
  const std::vector<float> zeros{0.0f, 0.0f};
  CHECK(relative_error(values, zeros) == doctest::Approx(1.0));
  CHECK(relative_error(zeros, zeros) == 0.0);
}

TEST_CASE("a matrix of many numbers has the error that all of its differences have") {
  // A million times the same difference: sums in float32 would stop growing.
  const std::vector<float> values(1 << 20, 1.0f), moved(1 << 20, 1.5f);
  CHECK(relative_error(values, moved) == doctest::Approx(0.5).epsilon(1e-9));
}

TEST_CASE(
    "a table of errors has a column for each group, for an output and for the whole matrix, in percent") {
  std::vector<std::vector<std::size_t>> asked;
  const Table table =
      rounding_errors(tales(), [&](std::span<const float> weights, std::size_t inputs, std::size_t size) {
        asked.push_back({weights.size(), inputs, size});
        std::vector<float> rounded(weights.begin(), weights.end());
        // Larger groups move more: by the size / 2^24 of each weight.
        for (float& weight : rounded) weight *= 1.0f + std::ldexp(static_cast<float>(size), -24);
        return rounded;
      });
  REQUIRE(asked.size() == 5 * 25);
  CHECK(asked[0] == std::vector<std::size_t>{4096 * 256, 256, 32});
  CHECK(asked[1][2] == 64);
  CHECK(asked[2][2] == 128);
  CHECK(asked[3] == std::vector<std::size_t>{4096 * 256, 256, 256});
  CHECK(asked[4] == std::vector<std::size_t>{4096 * 256, 4096 * 256, 4096 * 256});
  std::istringstream text(table.text(4));
  std::string line, name, rest;
  std::getline(text, line);
  CHECK(words_of(line) == words_of("error in %, scale per  32 inputs  64  128  output  matrix"));
  text >> name;
  std::getline(text, rest);
  CHECK(name == "wte.weight");
  std::istringstream numbers(rest);
  const std::vector<double> errors{std::istream_iterator<double>(numbers), {}};
  // In percent, and a change by 2^-20 of each weight is rounded to a float32.
  CHECK(errors == std::vector<double>{0.0002, 0.0004, 0.0008, 0.0015, 6.25});
}

}  // namespace
}  // namespace staircase
