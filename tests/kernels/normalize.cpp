// normalize against its formulas in double precision.
//
// The tolerance: a normalised value is below sqrt(width) and errs by a few eps; the sums add eps ·
// sqrt(width) to the mean and the variance. 1e-6 · sqrt(width), and 1e-6 for the bias, covers both.
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

void check_layer_norm(const Values& x, std::size_t rows, std::size_t width, double tolerance,
                      float epsilon = 1e-5f) {
  const Values weight = random_values(width, 2), bias = random_values(width, 3);
  const auto want = naive::layer_norm(x, weight, bias, static_cast<double>(epsilon), rows, width);
  on_every_device([&](Device& device) {
    const auto columns = static_cast<std::int64_t>(width);
    const Shape shape{static_cast<std::int64_t>(rows), columns};
    Tensor out = result_tensor(device, shape);
    const Norm norm{NormKind::kLayer, upload(device, {columns}, weight), upload(device, {columns}, bias),
                    epsilon};
    device.normalize(upload(device, shape, x), norm, out);
    CAPTURE(rows);
    CAPTURE(epsilon);
    CHECK(difference("out", download(device, out), want, width, tolerance) == "");
  });
}

TEST_CASE("layer_norm agrees with its formula for every odd shape") {
  for (const std::size_t rows : {0u, 1u, 2u, 5u, 33u}) {
    for (const std::size_t width : {1u, 2u, 3u, 8u, 15u, 16u, 17u, 31u, 64u, 75u, 96u, 257u, 768u, 1600u}) {
      check_layer_norm(random_values(rows * width, 1), rows, width,
                       1e-6 * (1.0 + std::sqrt(static_cast<double>(width))));
    }
  }
}

void check_rms_norm(const Values& x, std::size_t rows, std::size_t width, double tolerance,
                    float epsilon = 1e-5f) {
  const Values weight = random_values(width, 2);
  const auto want = naive::rms_norm(x, weight, static_cast<double>(epsilon), rows, width);
  on_every_device([&](Device& device) {
    const auto columns = static_cast<std::int64_t>(width);
    const Shape shape{static_cast<std::int64_t>(rows), columns};
    Tensor out = result_tensor(device, shape);
    device.normalize(upload(device, shape, x),
                     {NormKind::kRms, upload(device, {columns}, weight), Tensor(), epsilon}, out);
    CAPTURE(rows);
    CAPTURE(epsilon);
    CHECK(difference("out", download(device, out), want, width, tolerance) == "");
  });
}

TEST_CASE("an RMS norm agrees with its formula for every odd shape") {
  for (const std::size_t rows : {0u, 1u, 2u, 5u, 33u}) {
    for (const std::size_t width : {1u, 2u, 3u, 8u, 15u, 16u, 17u, 31u, 64u, 75u, 96u, 257u, 768u, 1600u}) {
      Values x = random_values(rows * width, 1);
      for (float& value : x) value += 0.25f;  // a mean that must not be taken away
      check_rms_norm(x, rows, width, 1e-6 * (1.0 + std::sqrt(static_cast<double>(width))));
    }
  }
}

TEST_CASE("an RMS norm adds epsilon under the root") {
  for (const float epsilon : {1e-12f, 1e-6f, 1e-5f, 1.0f}) {
    for (const float scale : {0.01f, 1e-3f})
      check_rms_norm(random_values(2 * 17, 1, scale), 2, 17, 1e-5, epsilon);
  }
  // Without epsilon it would be NaN.
  check_rms_norm(Values(2 * 17), 2, 17, 0.0);
}

TEST_CASE("a norm without weight and bias has 1 and 0 for them") {
  const std::size_t rows = 3;
  for (const std::size_t width : {1u, 15u, 64u, 75u}) {
    const Values x = random_values(rows * width, 1), ones(width, 1.0f), zeros(width, 0.0f);
    on_every_device([&](Device& device) {
      const auto columns = static_cast<std::int64_t>(width);
      const Shape shape = shape_of(rows, width);
      const Tensor weight = upload(device, {columns}, ones), bias = upload(device, {columns}, zeros);
      const auto run = [&](const Norm& norm) {
        Tensor out = result_tensor(device, shape);
        device.normalize(upload(device, shape, x), norm, out);
        return download(device, out);
      };
      CAPTURE(width);
      for (const NormKind kind : {NormKind::kLayer, NormKind::kRms}) {
        const Values want = run({kind, weight, bias, 1e-5f});
        CHECK(same_bits(run({kind, Tensor(), Tensor(), 1e-5f}), want));
        CHECK(same_bits(run({kind, weight, Tensor(), 1e-5f}), want));
        CHECK(same_bits(run({kind, Tensor(), bias, 1e-5f}), want));
      }
    });
  }
}

TEST_CASE("a normalized row is added to what is there") {
  for (const std::size_t rows : {0u, 1u, 5u, 33u}) {
    for (const std::size_t width : {1u, 3u, 16u, 31u, 64u, 75u, 257u}) {
      const Values x = random_values(rows * width, 1), weight = random_values(width, 2),
                   before = random_values(rows * width, 3);
      auto want = naive::rms_norm(x, weight, 1e-6, rows, width);
      for (std::size_t i = 0; i < want.size(); ++i) want[i] += static_cast<double>(before[i]);
      on_every_device([&](Device& device) {
        Tensor out = upload(device, shape_of(rows, width), before);
        const Norm norm{
            NormKind::kRms, upload(device, {static_cast<std::int64_t>(width)}, weight), {}, 1e-6f};
        device.add_normalized(upload(device, shape_of(rows, width), x), norm, out);
        CAPTURE(rows);
        CHECK(difference("out", download(device, out), want, width,
                         1e-6 * (1.0 + std::sqrt(static_cast<double>(width)))) == "");
      });
    }
  }
}

TEST_CASE("layer_norm of a constant row is the bias") {
  for (const float value : {0.0f, 1.0f, -3000.0f}) check_layer_norm(Values(2 * 31, value), 2, 31, 1e-6);
}

TEST_CASE("layer_norm keeps its precision where the sum of squares would cancel") {
  // Mean 1000 and variance 1/3: in float32, the mean of the squares minus the squared mean has no digit left.
  Values x = random_values(3 * 257, 1);
  for (float& value : x) value += 1000.0f;
  check_layer_norm(x, 3, 257, 1e-3);
}

TEST_CASE("layer_norm takes features hundreds of times larger than the others") {
  Values x = random_values(5 * 768, 1);
  for (std::size_t r = 0; r < 5; ++r) x[r * 768 + 447] = 3000.0f;
  check_layer_norm(x, 5, 768, 1e-5);
}

TEST_CASE("layer_norm adds epsilon under the root") {
  for (const float epsilon : {1e-12f, 1e-5f, 1.0f}) {
    check_layer_norm(random_values(2 * 17, 1, 0.01f), 2, 17, 1e-5, epsilon);
  }
}

}  // namespace
}  // namespace staircase
