// The 16-bit formats against arithmetic in double precision, and products with weights stored in them.
#include "kernels/half.h"

#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

struct Format {
  const char* name;
  float (*widen)(std::uint16_t);
  std::uint16_t (*narrow)(float);
  std::uint16_t infinity;
};
constexpr Format kHalfFormats[] = {{"float16", float32_from_float16, float16_from_float32, 0x7C00},
                                   {"bfloat16", float32_from_bfloat16, bfloat16_from_float32, 0x7F80}};

TEST_CASE("each pattern of a 16-bit format survives the way to float32 and back") {
  for (const Format& format : kHalfFormats) {
    CAPTURE(format.name);
    int lost = 0;
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const float value = format.widen(static_cast<std::uint16_t>(bits));
      if (std::isnan(value)) {
        lost += !std::isnan(format.widen(format.narrow(value)));
      } else {
        lost += format.narrow(value) != bits;
      }
    }
    CHECK(lost == 0);
  }
}

TEST_CASE("rounding takes the nearest 16-bit number, ties to even") {
  for (const Format& format : kHalfFormats) {
    CAPTURE(format.name);
    int wrong = 0;
    for (std::uint16_t bits = 0; bits + 1 < format.infinity; ++bits) {
      const auto next = static_cast<std::uint16_t>(bits + 1);
      const float low = format.widen(bits), high = format.widen(next);
      const auto middle = static_cast<float>((static_cast<double>(low) + static_cast<double>(high)) / 2);
      wrong += format.narrow(middle) != (bits % 2 == 0 ? bits : next);
      wrong += format.narrow(std::nextafter(middle, low)) != bits;
      wrong += format.narrow(std::nextafter(middle, high)) != next;
      wrong += format.narrow(-std::nextafter(middle, high)) != (next | 0x8000);
    }
    CHECK(wrong == 0);
    CHECK(format.narrow(std::numeric_limits<float>::max()) == format.infinity);
    CHECK(format.narrow(-kInfinity) == (format.infinity | 0x8000));
  }
  CHECK(float16_from_float32(65519.99f) == 0x7BFF);  // the largest number
  CHECK(float16_from_float32(65520.0f) == 0x7C00);
}

/// x [rows, in] times w [in, out], the weights kept in that dtype.
Values product(Device& device, const Values& x, const Values& w, std::int64_t in, std::int64_t out,
               DType dtype) {
  const std::int64_t rows = std::ssize(x) / in;
  Tensor result = result_tensor(device, {rows, out});
  const Weight weight =
      device.load_weight({w.data(), DType::kFloat32, in, out}, WeightOrder::kInputFirst, dtype);
  device.linear(upload(device, {rows, in}, x), {}, weight, Tensor(), Epilogue::kStore, result);
  return download(device, result);
}

struct Matrix {
  std::int64_t in, out;
};
constexpr Matrix kMatrices[] = {{1, 1},   {2, 16},  {17, 31}, {75, 100},
                                {64, 33}, {64, 48}, {98, 65}, {64, 257}};

TEST_CASE("a product with float16 weights is the product with the rounded weights, to the bit") {
  for (const Matrix& matrix : kMatrices) {
    const std::int64_t in = matrix.in, out = matrix.out;
    const Values w = random_values(static_cast<std::size_t>(in * out), 1);
    for (const std::int64_t rows : {1, 5, 7, 23, 24, 40}) {
      const Values x = random_values(static_cast<std::size_t>(rows * in), 2);
      on_every_device([&](Device& device) {
        CAPTURE(in);
        CAPTURE(out);
        CAPTURE(rows);
        // A GPU has its own kernels for 16 bits, see sixteen_bits.cpp.
        if (!has_one_kernel(device)) return;
        CHECK(same_bits(product(device, x, w, in, out, DType::kFloat16),
                        product(device, x, rounded(w, DType::kFloat16), in, out, DType::kFloat32)));
      });
    }
  }
}

// The products of bfloat16 numbers are exact in float32, so only the sums err: the tolerance of linear.cpp.
// Rounding x or not makes a difference of some 0.002 sqrt(in), more than a thousand times as much.
TEST_CASE("a product with bfloat16 weights is the product of both operands rounded, its sums in float32") {
  for (const Matrix& matrix : kMatrices) {
    const std::int64_t in = matrix.in, out = matrix.out;
    const Values w = random_values(static_cast<std::size_t>(in * out), 1);
    for (const std::int64_t rows : {1, 2, 3, 4, 5, 6, 7, 23, 24, 40}) {
      const Values x = random_values(static_cast<std::size_t>(rows * in), 2);
      const auto columns = static_cast<std::size_t>(out), depth = static_cast<std::size_t>(in);
      const auto want = naive::linear(rounded(x, DType::kBFloat16), rounded(w, DType::kBFloat16), {},
                                      static_cast<std::size_t>(rows), depth, columns);
      on_every_device([&](Device& device) {
        if (!has_one_kernel(device)) return;
        CAPTURE(in);
        CAPTURE(rows);
        CHECK(difference("product", product(device, x, w, in, out, DType::kBFloat16), want, columns,
                         1e-6 * (1.0 + std::sqrt(static_cast<double>(in)))) == "");
      });
    }
  }
}

TEST_CASE("a row of a product with 16-bit weights is the same to the bit whatever its neighbours are") {
  const std::int64_t rows = 33;
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const Matrix& matrix : kMatrices) {
      const std::int64_t in = matrix.in, out = matrix.out;
      const Values x = random_values(static_cast<std::size_t>(rows * in), 1),
                   w = random_values(static_cast<std::size_t>(in * out), 2);
      std::string last_target;
      Values first;
      on_every_device([&](Device& device) {
        if (!has_one_kernel(device)) return;
        const Values together = product(device, x, w, in, out, dtype);
        // As in linear.cpp: thread counts of one target must agree.
        const std::string name = device.description(), target = name.substr(name.rfind(' '));
        if (target != last_target) first = together;
        last_target = target;
        CHECK(same_bits(together, first));
        for (const std::int64_t count : {1, 2, 6, 7, 24}) {
          for (const std::int64_t begin : {std::int64_t{0}, std::int64_t{5}, rows - count}) {
            const auto rows_of = [&](const Values& values, std::int64_t width) {
              return Values(values.begin() + begin * width, values.begin() + (begin + count) * width);
            };
            CAPTURE(to_string(dtype));
            CAPTURE(in);
            CAPTURE(begin);
            CAPTURE(count);
            CHECK(same_bits(product(device, rows_of(x, in), w, in, out, dtype), rows_of(together, out)));
          }
        }
      });
    }
  }
}

TEST_CASE("NaN stays NaN in a product with bfloat16 weights") {
  const std::int64_t in = 64, out = 20;
  const Values w(static_cast<std::size_t>(in * out), 1.0f);
  for (const float broken : {kNaN, kInfinity, -kInfinity, std::numeric_limits<float>::max()}) {
    Values x(static_cast<std::size_t>(7 * in));
    x[3 * in + 5] = broken;
    on_every_device([&](Device& device) {
      // The largest number becomes infinite when x is rounded: a GPU does not round a few rows.
      if (std::isfinite(broken) && !has_one_kernel(device)) return;
      const Values got = product(device, x, w, in, out, DType::kBFloat16);
      const auto finite = [](float value) { return std::isfinite(value); };
      CHECK(std::count_if(got.begin(), got.end(), finite) == 6 * out);
    });
  }
}

TEST_CASE("an embedding from a 16-bit table is that of the rounded table, to the bit") {
  // More tokens than a panel has columns, and features of an odd number, which bfloat16 keeps in pairs.
  const std::int64_t vocab_size = 137, width = 21;
  const Values table = random_values(static_cast<std::size_t>(vocab_size * width), 1);
  const Values positions = random_values(static_cast<std::size_t>(9 * width), 2);
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    on_every_device([&](Device& device) {
      const auto embed = [&](const Values& values, DType stored) {
        Tensor out = result_tensor(device, {4, width});
        const Weight weight = device.load_weight({values.data(), DType::kFloat32, vocab_size, width},
                                                 WeightOrder::kOutputFirst, stored);
        device.embedding(make_batch(device, {{5, 4}}, {136, 0, 17, 64}), weight,
                         upload(device, {9, width}, positions), out);
        return download(device, out);
      };
      CHECK(same_bits(embed(table, dtype), embed(rounded(table, dtype), DType::kFloat32)));
    });
  }
}

}  // namespace
}  // namespace staircase
