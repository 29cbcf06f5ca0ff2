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

TEST_CASE("rounding takes the nearest 16-bit number, and of two equally near the even one") {
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

TEST_CASE("a product with 16-bit weights is the product with the rounded weights, to the bit") {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const auto& [in, out] :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {17, 31}, {75, 100}, {64, 257}}) {
      const Values w = random_values(static_cast<std::size_t>(in * out), 1);
      const Values exact = rounded(w, dtype);
      for (const std::int64_t rows : {1, 5, 7, 23, 24, 40}) {
        const Values x = random_values(static_cast<std::size_t>(rows * in), 2);
        on_every_device([&](Device& device) {
          const auto product = [&](const Values& weights, DType stored) {
            Tensor result = result_tensor(device, {rows, out});
            const Weight weight = device.load_weight({weights.data(), DType::kFloat32, in, out},
                                                     WeightOrder::kInputFirst, stored);
            device.linear(upload(device, {rows, in}, x), weight, Tensor(), Epilogue::kStore, result);
            return download(device, result);
          };
          CAPTURE(in);
          CAPTURE(out);
          CAPTURE(rows);
          // A GPU has kernels of its own for 16 bits, see sixteen_bits.cpp.
          if (has_one_kernel(device)) CHECK(same_bits(product(w, dtype), product(exact, DType::kFloat32)));
        });
      }
    }
  }
}

TEST_CASE("an embedding from a 16-bit table is that of the rounded table, to the bit") {
  const std::int64_t vocab_size = 37, width = 20;
  const Values table = random_values(static_cast<std::size_t>(vocab_size * width), 1);
  const Values positions = random_values(static_cast<std::size_t>(9 * width), 2);
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    on_every_device([&](Device& device) {
      const auto embed = [&](const Values& values, DType stored) {
        Tensor out = result_tensor(device, {4, width});
        const Weight weight = device.load_weight({values.data(), DType::kFloat32, vocab_size, width},
                                                 WeightOrder::kOutputFirst, stored);
        device.embedding(make_batch(device, {{5, 4}}, {36, 0, 17, 16}), weight,
                         upload(device, {9, width}, positions), out);
        return download(device, out);
      };
      CHECK(same_bits(embed(table, dtype), embed(rounded(table, dtype), DType::kFloat32)));
    });
  }
}

}  // namespace
}  // namespace staircase
