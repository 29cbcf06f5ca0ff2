// softmax on the host.
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

constexpr std::size_t kWidths[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 257, 50257};

/// The probabilities of a row by the formula, in double precision.
std::vector<double> naive_softmax(const Values& row) {
  const double largest = static_cast<double>(*std::max_element(row.begin(), row.end()));
  std::vector<double> result;
  double sum = 0.0;
  for (const float x : row) sum += result.emplace_back(std::exp(static_cast<double>(x) - largest));
  for (double& probability : result) probability /= sum;
  return result;
}

/// `row` becomes naive_softmax of it on each SIMD target, up to a share of 1e-5 of the largest one.
void check_softmax(const Values& row) {
  const std::vector<double> want = naive_softmax(row);
  const double tolerance = 1e-5 * *std::max_element(want.begin(), want.end());
  on_every_device([&](Device&) {
    Values x = row;
    CHECK(softmax_in_place(x));
    CHECK(difference("softmax", x, want, want.size(), tolerance) == "");
  });
}

TEST_CASE("softmax is exp(x) over the sum of them") {
  for (const std::size_t width : kWidths) {
    Values row = random_values(width, 1);
    check_softmax(row);
    for (float& value : row) value *= 100.0f;
    check_softmax(row);
    for (float& value : row) value += 1e5f;
    check_softmax(row);
    check_softmax(Values(width, -3e38f));
  }
}

TEST_CASE("minus infinity has the probability 0, wherever it is") {
  for (const std::size_t width : kWidths) {
    for (std::size_t kept = 0; kept < width; kept += 1 + width / 5) {
      Values row(width, -kInfinity);
      row[kept] = -7.0f;
      check_softmax(row);
      row[width - 1] = -6.5f;
      check_softmax(row);
      Values values = random_values(width, 2);
      values[kept] = -kInfinity;
      if (width > 1) check_softmax(values);
    }
  }
}

TEST_CASE("softmax reports if there is no distribution") {
  for (const std::size_t width : kWidths) {
    for (std::size_t place = 0; place < width; place += 1 + width / 5) {
      on_every_device([&](Device&) {
        Values nothing(width, -kInfinity);
        CHECK(!softmax_in_place(nothing));
        for (const float broken : {kInfinity, kNaN}) {
          Values row = random_values(width, 3);
          row[place] = broken;
          CHECK(!softmax_in_place(row));
          row.assign(width, -kInfinity);
          row[place] = broken;
          CHECK(!softmax_in_place(row));
        }
      });
    }
  }
  CHECK(!softmax_in_place({}));
}

}  // namespace
}  // namespace staircase
