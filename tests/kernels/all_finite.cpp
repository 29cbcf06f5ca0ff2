// all_finite of a row of logits.
#include <limits>

#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kMost = std::numeric_limits<float>::max();

TEST_CASE("all_finite finds the only non-finite value wherever it is") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::size_t width : {1u, 2u, 15u, 33u, 130u}) {
    CAPTURE(width);
    Values row(width, -1.5f);
    for (std::size_t place = 0; place < width; ++place) {
      CAPTURE(place);
      for (const float broken : {kInfinity, -kInfinity, nan, -nan}) {
        row[place] = broken;
        CHECK(!all_finite(row));
      }
      row[place] = -1.5f;
    }
    CHECK(all_finite(row));
  }
}

TEST_CASE("all_finite takes what is very large, very small or nothing at all for finite") {
  CHECK(all_finite({}));
  for (const float value : {0.0f, -0.0f, kMost, -kMost, std::numeric_limits<float>::denorm_min()}) {
    CHECK(all_finite(Values(77, value)));
  }
}

}  // namespace
}  // namespace staircase
