// load and load_weight against a conversion written from the definitions of the formats: every one of the
// 65536 bit patterns of the two 16-bit formats, equal to the bit.
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

using Bytes = std::vector<std::byte>;

/// IEEE 754 binary16 or bfloat16: sign, exponent and fraction, put together by arithmetic.
float decode(std::uint32_t bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = static_cast<int>(bits) & ((1 << fraction_bits) - 1);
  const float sign = bits >> 15 != 0 ? -1.0f : 1.0f;
  if (exponent == (1 << exponent_bits) - 1) return fraction == 0 ? sign * kInfinity : kNaN;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), 1 - bias - fraction_bits);
  return sign *
         std::ldexp(static_cast<float>(fraction + (1 << fraction_bits)), exponent - bias - fraction_bits);
}

struct Stored {
  DType dtype;
  Bytes bytes;
  Values values;
};

/// All 65536 patterns of a 16-bit format, or the same number of float32 values of every kind.
Stored every_pattern(DType dtype) {
  Stored stored{dtype, {}, {}};
  for (std::uint32_t i = 0; i < 65536; ++i) {
    // In an order that puts unlike numbers side by side; 40503 is odd, so every pattern comes once.
    const std::uint32_t bits = i * 40503u % 65536u;
    std::byte raw[4];
    if (dtype == DType::kFloat32) {
      const std::uint32_t wide = bits << 16 | (i & 0xffffu);
      std::memcpy(raw, &wide, 4);
      float value;
      std::memcpy(&value, &wide, 4);
      stored.values.push_back(value);
    } else {
      const auto narrow = static_cast<std::uint16_t>(bits);
      std::memcpy(raw, &narrow, 2);
      stored.values.push_back(decode(bits, dtype == DType::kFloat16 ? 5 : 8));
    }
    stored.bytes.insert(stored.bytes.end(), raw, raw + size_of(dtype));
  }
  return stored;
}

constexpr DType kFormats[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

/// NaN equals NaN; zeros must have the same sign.
std::string exact_difference(const Values& got, const Values& want, std::size_t columns) {
  for (std::size_t i = 0; i < want.size() && got.size() == want.size(); ++i) {
    if (std::signbit(got[i]) != std::signbit(want[i]) && !std::isnan(want[i])) {
      return fmt::format("[{}]: got {}, want {}", i, got[i], want[i]);
    }
  }
  return difference("values", got, want, columns, 0.0);
}

Values to_host(Device& device, const Tensor& tensor) {
  Values values(static_cast<std::size_t>(tensor.size()));
  device.copy_to_host(tensor, values);
  return values;
}

/// What a weight matrix holds, [out, in], as embedding reads it: with positions of minus zero it adds
/// nothing.
Values rows_of(Device& device, const Weight& weight) {
  const std::int64_t tokens = weight.out_features, width = weight.in_features;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
  std::iota(ids.begin(), ids.end(), 0);
  Tensor out = result_tensor(device, {tokens, width});
  const Shape shape{tokens, width};
  device.embedding(make_batch(device, {{0, static_cast<int>(tokens)}}, ids), weight,
                   upload(device, shape, Values(element_count(shape), -0.0f)), out);
  return download(device, out);
}

TEST_CASE("load converts every number of every format") {
  for (const DType dtype : kFormats) {
    const Stored stored = every_pattern(dtype);
    on_every_device([&](Device& device) {
      CAPTURE(static_cast<int>(dtype));
      const Tensor vector = device.load({stored.bytes.data(), dtype, 1, 65536});
      CHECK(vector.shape() == Shape{65536});
      CHECK(exact_difference(to_host(device, vector), stored.values, 65536) == "");
      const Tensor table = device.load({stored.bytes.data(), dtype, 256, 256});
      CHECK(table.shape() == Shape{256, 256});
      CHECK(exact_difference(to_host(device, table), stored.values, 256) == "");
    });
  }
}

TEST_CASE("load reads from any address and no byte beyond the array") {
  for (const DType dtype : kFormats) {
    const Stored stored = every_pattern(dtype);
    for (const std::size_t count : {1u, 2u, 3u, 4u, 5u, 15u, 17u, 33u}) {
      for (const std::size_t shift : {0u, 1u, 2u, 3u, 5u, 7u}) {
        // A block of just the right size: the address sanitizer sees a read beyond it.
        const std::size_t bytes = count * size_of(dtype);
        Bytes source(shift + bytes);
        std::copy_n(stored.bytes.begin(), bytes, source.begin() + static_cast<std::ptrdiff_t>(shift));
        const Values want(stored.values.begin(), stored.values.begin() + static_cast<std::ptrdiff_t>(count));
        on_every_device([&](Device& device) {
          CAPTURE(static_cast<int>(dtype));
          CAPTURE(shift);
          const Tensor tensor =
              device.load({source.data() + shift, dtype, 1, static_cast<std::int64_t>(count)});
          CHECK(exact_difference(to_host(device, tensor), want, count) == "");
        });
      }
    }
  }
}

TEST_CASE("load_weight converts every number of every format in both orders") {
  for (const DType dtype : kFormats) {
    const Stored stored = every_pattern(dtype);
    Values transposed(stored.values.size());
    for (std::size_t i = 0; i < 65536; ++i) transposed[i % 256 * 256 + i / 256] = stored.values[i];
    on_every_device([&](Device& device) {
      CAPTURE(static_cast<int>(dtype));
      const HostArray array{stored.bytes.data(), dtype, 256, 256};
      const Weight output_first = device.load_weight(array, WeightOrder::kOutputFirst, DType::kFloat32);
      CHECK(exact_difference(rows_of(device, output_first), stored.values, 256) == "");
      const Weight input_first = device.load_weight(array, WeightOrder::kInputFirst, DType::kFloat32);
      CHECK(exact_difference(rows_of(device, input_first), transposed, 256) == "");
    });
  }
}

TEST_CASE("load_weight takes matrices of every odd shape from any address") {
  for (const DType dtype : kFormats) {
    const Stored stored = every_pattern(dtype);
    for (const std::size_t in : {1u, 2u, 15u, 17u, 100u}) {
      for (const std::size_t out : {1u, 2u, 15u, 16u, 17u, 31u, 257u}) {
        const std::size_t shift = (in + out) % 4, bytes = in * out * size_of(dtype);
        Bytes source(shift + bytes);
        std::copy_n(stored.bytes.begin(), bytes, source.begin() + static_cast<std::ptrdiff_t>(shift));
        // The same bytes as [in, out] and as [out, in].
        const Values as_rows(stored.values.begin(),
                             stored.values.begin() + static_cast<std::ptrdiff_t>(in * out));
        Values turned(in * out);
        for (std::size_t i = 0; i < in * out; ++i) turned[i % out * in + i / out] = as_rows[i];
        const auto rows = static_cast<std::int64_t>(out), columns = static_cast<std::int64_t>(in);
        on_every_device([&](Device& device) {
          CAPTURE(static_cast<int>(dtype));
          CAPTURE(in);
          CAPTURE(out);
          const Weight output_first = device.load_weight({source.data() + shift, dtype, rows, columns},
                                                         WeightOrder::kOutputFirst, DType::kFloat32);
          CHECK(output_first.in_features == columns);
          CHECK(output_first.out_features == rows);
          CHECK(exact_difference(rows_of(device, output_first), as_rows, in) == "");
          const Weight input_first = device.load_weight({source.data() + shift, dtype, columns, rows},
                                                        WeightOrder::kInputFirst, DType::kFloat32);
          CHECK(input_first.in_features == columns);
          CHECK(input_first.out_features == rows);
          CHECK(exact_difference(rows_of(device, input_first), turned, in) == "");
        });
      }
    }
  }
}

TEST_CASE("load_weight rounds to 16 bits in both orders, in matrices of every odd shape") {
  for (const DType stored : kFormats) {
    for (const std::size_t in : {1u, 2u, 15u, 33u, 64u, 131u}) {
      for (const std::size_t out : {1u, 17u, 64u, 130u}) {
        const Values rows = rounded(random_values(in * out, static_cast<std::uint32_t>(in + out)), stored);
        Values columns(in * out);
        for (std::size_t i = 0; i < in * out; ++i) columns[i % in * out + i / in] = rows[i];
        const auto bytes = [&](const Values& values) {
          Bytes all(values.size() * size_of(stored));
          for (std::size_t i = 0; i < values.size(); ++i) {
            const std::uint16_t half = stored == DType::kFloat32 ? 0 : half_from_float32(values[i], stored);
            const void* const from = stored == DType::kFloat32 ? static_cast<const void*>(&values[i]) : &half;
            std::memcpy(all.data() + i * size_of(stored), from, size_of(stored));
          }
          return all;
        };
        const Bytes by_row = bytes(rows), by_column = bytes(columns);
        const auto inputs = static_cast<std::int64_t>(in), outputs = static_cast<std::int64_t>(out);
        for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
          on_every_device([&](Device& device) {
            INFO(to_string(stored), " to ", to_string(dtype), ", ", in, " inputs, ", out, " outputs");
            const Values want = rounded(rows, dtype);
            CHECK(same_bits(rows_of(device, device.load_weight({by_row.data(), stored, outputs, inputs},
                                                               WeightOrder::kOutputFirst, dtype)),
                            want));
            CHECK(same_bits(rows_of(device, device.load_weight({by_column.data(), stored, inputs, outputs},
                                                               WeightOrder::kInputFirst, dtype)),
                            want));
          });
        }
      }
    }
  }
}

TEST_CASE("load_weight puts the parts of a weight side by side, to the bit, in every type") {
  // As of one matrix: 45 outputs in parts of 1, 16, 0 and 28, stored in three formats.
  const std::int64_t in = 70;
  const std::pair<std::int64_t, DType> parts[] = {{1, DType::kFloat32},
                                                  {16, DType::kBFloat16},
                                                  {0, DType::kFloat32},
                                                  {28, DType::kFloat16},
                                                  {90, DType::kFloat32}};
  Values whole;
  std::vector<std::vector<std::uint16_t>> halves;
  std::vector<Values> floats;
  std::vector<HostArray> arrays;
  std::uint32_t seed = 1;
  for (const auto& [rows, dtype] : parts) {
    const Values values = rounded(random_values(static_cast<std::size_t>(rows * in), seed++), dtype);
    whole.insert(whole.end(), values.begin(), values.end());
    if (dtype == DType::kFloat32) {
      arrays.push_back({floats.emplace_back(values).data(), dtype, rows, in});
    } else {
      std::vector<std::uint16_t>& bits = halves.emplace_back();
      for (const float value : values) bits.push_back(half_from_float32(value, dtype));
      arrays.push_back({bits.data(), dtype, rows, in});
    }
  }
  const std::int64_t out = std::ssize(whole) / in;
  const HostArray one{whole.data(), DType::kFloat32, out, in};
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt8, DType::kInt4}) {
    on_every_device([&](Device& device) {
      INFO(to_string(dtype));
      const Weight weight = device.load_weight(arrays, WeightOrder::kOutputFirst, dtype);
      CHECK(weight.out_features == out);
      CHECK(weight.in_features == in);
      const Weight wanted = device.load_weight(one, WeightOrder::kOutputFirst, dtype);
      CHECK(same_bits(rows_of(device, weight), rows_of(device, wanted)));
    });
  }
  on_every_device([&](Device& device) {
    const HostArray turned{whole.data(), DType::kFloat32, in, out};
    const Weight weight =
        device.load_weight(std::span(&turned, 1), WeightOrder::kInputFirst, DType::kFloat32);
    CHECK(same_bits(rows_of(device, weight),
                    rows_of(device, device.load_weight(turned, WeightOrder::kInputFirst, DType::kFloat32))));
  });
}

}  // namespace
}  // namespace staircase
