// Every rung of the CPU's ladders computes the same product as three plain loops in double precision.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/rungs/cpu/rung.h"
#include "tests/kernels/naive.h"

using namespace staircase;
using namespace staircase::rungs;

namespace {

const std::vector<ProductShape> kOddShapes = {{1, 1, 1},      {1, 31, 63},  {1, 32, 64},  {1, 33, 65},
                                              {1, 300, 1100}, {2, 64, 17},  {5, 65, 130}, {6, 96, 1024},
                                              {7, 63, 127},   {13, 129, 65}};

/// Whole numbers up to 127, with the largest in each group of 32 inputs, on both sides. Then 8 bits and
/// bfloat16 round nothing, and no sum needs more than the 24 bits of a float: all types must agree exactly.
struct Wholes {
  explicit Wholes(const ProductShape& shape) {
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      for (std::int64_t i = 0; i < shape.n_in; ++i) x.push_back(whole(i, 1));
    }
    for (std::int64_t i = 0; i < shape.n_in; ++i) {
      for (std::int64_t o = 0; o < shape.n_out; ++o) w.push_back(whole(i, o % 2 == 0 ? 1.0f : -1.0f));
    }
  }

  naive::Values x, w;

 private:
  float whole(std::int64_t i, float sign) {
    return i % 32 == 0 ? sign * 127.0f : static_cast<float>(static_cast<int>(random_() % 255) - 127);
  }

  std::mt19937 random_{1};
};

std::vector<float> product(const Rung& rung, const ProductShape& shape, const naive::Values& x,
                           const naive::Values& w, ThreadTeam& team) {
  std::vector<float> y(static_cast<std::size_t>(shape.rows * shape.n_out) + 1, 0.5f);
  const std::unique_ptr<Product> prepared = rung.prepare(shape, w.data(), team);
  prepared->run(x.data(), y.data());
  prepared->run(x.data(), y.data());  // nothing is left over from the first time
  CHECK(y.back() == 0.5f);
  y.pop_back();
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
  each_rung(kOddShapes, [&](const Rung& rung, const ProductShape& shape, bool) {
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
    const bool is_bfloat16 = rung.name.find("bfloat16") != std::string_view::npos;
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

TEST_CASE("names are numbered in order, and a rung that cannot run says what is lacking") {
  for (const std::span<const Rung> ladder : {matvec_ladder(), product_ladder()}) {
    int number = 1;
    for (const Rung& rung : ladder) {
      CHECK(rung.name.starts_with(std::to_string(number++) + "-"));
      CHECK((rung.prepare == nullptr) == !rung.lacks.empty());
    }
  }
}
