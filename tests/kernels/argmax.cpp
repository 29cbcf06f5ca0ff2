// argmax of a row of logits.
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

void check_argmax(const Values& row, int want) {
  CAPTURE(row.size());
  CHECK(argmax(row) == want);
}

constexpr std::size_t kWidths[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 257};

TEST_CASE("argmax finds the largest value wherever it is") {
  for (const std::size_t width : kWidths) {
    for (std::size_t place = 0; place<width; place += width> 33 ? 13 : 1) {
      Values row = random_values(width, 1);
      row[place] = 2.0f;
      check_argmax(row, static_cast<int>(place));
    }
  }
}

TEST_CASE("argmax takes the lowest index among equals") {
  for (const std::size_t width : kWidths) {
    check_argmax(Values(width, -1.5f), 0);
    for (std::size_t first = 0; first<width; first += width> 33 ? 31 : 3) {
      for (std::size_t second = first; second<width; second += width> 33 ? 17 : 5) {
        Values row = random_values(width, 2);
        row[first] = row[second] = 3.0f;
        check_argmax(row, static_cast<int>(first));
      }
    }
  }
}

TEST_CASE("argmax takes minus and plus zero for equal") {
  check_argmax({-1.0f, -0.0f, 0.0f}, 1);
  check_argmax({-1.0f, 0.0f, -0.0f}, 1);
}

TEST_CASE("argmax skips minus infinity, and takes the first if there is nothing else") {
  for (const std::size_t width : kWidths) {
    Values row(width, -kInfinity);
    check_argmax(row, 0);
    row.back() = -1e38f;
    check_argmax(row, static_cast<int>(width) - 1);
    row.front() = kInfinity;
    check_argmax(row, 0);
  }
}

}  // namespace
}  // namespace staircase
