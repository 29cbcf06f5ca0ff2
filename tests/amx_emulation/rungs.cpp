// The rungs of matrices (AMX), with emulated registers: then any processor with AVX-512 can test them.
#include <doctest/doctest.h>

#include "kernels/rungs/cpu/product/product.h"
#include "tests/kernels/naive.h"
#include "tests/kernels/rung_cases.h"

using namespace staircase;
using namespace staircase::rungs;

namespace {

bool runs(std::string_view lacks) {
  if (!lacks.empty()) MESSAGE("this processor lacks AVX-512 BF16, so nothing was tested");
  return lacks.empty();
}

}  // namespace

TEST_CASE("the rung of matrices multiplies whole numbers exactly, in every odd size") {
  if (!runs(product::kAmx.lacks)) return;
  ThreadTeam team(3);
  for (const ProductShape& shape : kOddProducts) {
    CAPTURE(shape.rows);
    CAPTURE(shape.n_in);
    CAPTURE(shape.n_out);
    const Wholes numbers(shape);
    const auto prepared = product::kAmx.prepare(shape, numbers.w.data(), team);
    bool stays_inside = false;
    const std::vector<float> y = results_of(
        shape.rows * shape.n_out, [&](float* to) { prepared->run(numbers.x.data(), to); }, stays_inside);
    CHECK(stays_inside);
    const naive::Doubles wanted =
        naive::linear(numbers.x, numbers.w, {}, static_cast<std::size_t>(shape.rows),
                      static_cast<std::size_t>(shape.n_in), static_cast<std::size_t>(shape.n_out));
    CHECK(std::equal(y.begin(), y.end(), wanted.begin(), wanted.end(),
                     [](float own, double right) { return static_cast<double>(own) == right; }));
  }
}

TEST_CASE("the rung of matrices weighs a prompt's values as the plain rung does") {
  if (!runs(prefill_attention::kAmx.lacks)) return;
  ThreadTeam team(3);
  for (const PromptShape& shape : kOddPrompts) {
    CAPTURE(shape.tokens);
    CAPTURE(shape.positions);
    CAPTURE(shape.head_size);
    const Heads heads(shape, 1.0f, 1);
    bool stays_inside = false;
    const std::vector<float> own = results_of(
        std::ssize(heads.queries),
        [&](float* to) { prefill_attention::kAmx.run(heads.prompt(shape), team, to); }, stays_inside);
    CHECK(stays_inside);
    std::vector<float> plain(own.size());
    prefill_attention::kPlain.run(heads.prompt(shape), team, plain.data());
    for (std::size_t i = 0; i < own.size(); ++i)
      REQUIRE(std::abs(own[i] - plain[i]) < tolerance_of_attention("9-amx", 1.0f));
  }
}
