// What a token more costs, and whether a draft pays.
#include "common/decoding/pass_rate.h"

#include <doctest/doctest.h>

namespace staircase {
namespace {

/// Passes of 5 ms and 2 ms a token.
struct Passes {
  PassRate rate;
  double now = 100.0;

  Passes() {
    rate.now = [this] { return now; };
  }

  void pass(int tokens, int grown, double ms_per_token = 2.0) {
    rate.begin_pass();
    now += 5.0 + ms_per_token * tokens;
    rate.end_pass(tokens, grown);
  }
};

TEST_CASE("the slope of passes is what a token costs") {
  Passes passes;
  for (const int tokens : {4, 9, 4, 16, 1, 30}) passes.pass(tokens, 4);
  CHECK(passes.rate.slope() == doctest::Approx(2.0));
}

TEST_CASE("before a pass, and while all take as many tokens, a token more is free") {
  Passes passes;
  CHECK(passes.rate.slope() == 0.0);
  CHECK(passes.rate.pays(0.01, 15));
  for (int i = 0; i < 100; ++i) passes.pass(7, 7);
  CHECK(passes.rate.slope() == 0.0);
  CHECK(passes.rate.pays(0.01, 15));
}

TEST_CASE("passes that get shorter with more tokens are an accident, and such a token is free, too") {
  Passes passes;
  for (const int tokens : {4, 9, 4, 16}) passes.pass(tokens, 4, -0.1);
  CHECK(passes.rate.slope() == 0.0);
}

TEST_CASE("old passes count less and less") {
  Passes passes;
  for (int i = 0; i < 50; ++i) passes.pass(4 + i % 5, 4, 8.0);
  for (int i = 0; i < 200; ++i) passes.pass(4 + i % 5, 4);
  CHECK(passes.rate.slope() == doctest::Approx(2.0).epsilon(0.01));
}

TEST_CASE("a draft pays if it brings more tokens per millisecond than the passes do") {
  Passes passes;
  // 4 tokens of 8 in 21 ms, so 0.19 per millisecond; one more draft costs 2 ms: it pays from 0.38 on.
  for (int i = 0; i < 400; ++i) passes.pass(i % 2 == 0 ? 7 : 9, 4);
  CHECK(passes.rate.slope() == doctest::Approx(2.0));
  CHECK(passes.rate.pays(0.385, 0));
  CHECK(!passes.rate.pays(0.375, 0));
  // After two others that have to be right, too.
  CHECK(passes.rate.pays(0.73, 2));   // 0.73³ = 0.389
  CHECK(!passes.rate.pays(0.72, 2));  // 0.72³ = 0.373
}

}  // namespace
}  // namespace staircase
