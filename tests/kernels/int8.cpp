// Weights in 8 bits, on the CPU: against plain loops in double precision on the numbers as they were rounded,
// by a rounding that is written here once more from its definition.
//
// The tolerance is that of the products of float32 (linear.cpp): the sums of whole numbers are exact, and
// what remains are the roundings of a chain that is kGroup times shorter.
#include "kernels/cpu/int8_tile.h"
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

/// Rows of `depth` values as they come back from 8 bits.
Values from_int8(Values rows, std::size_t depth) {
  const auto group = static_cast<std::size_t>(kGroup);
  for (std::size_t row = 0; row < rows.size(); row += depth) {
    for (std::size_t first = 0; first < depth; first += group) {
      const std::span<float> values(rows.data() + row + first, std::min(group, depth - first));
      float largest = 0.0f;
      for (const float value : values) largest = std::max(largest, std::abs(value));
      const float scale = largest / 127.0f;
      for (float& value : values) {
        value = scale == 0.0f ? 0.0f : std::clamp(std::nearbyint(value / scale), -127.0f, 127.0f) * scale;
      }
    }
  }
  return rows;
}

/// values [rows, columns], transposed.
Values turned(const Values& values, std::size_t columns) {
  const std::size_t rows = values.size() / columns;
  Values result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) result[i % columns * rows + i / columns] = values[i];
  return result;
}

struct Product {
  std::size_t rows, in, out;
  Values x = random_values(rows * in, 1), w = random_values(in * out, 2), bias = random_values(out, 3),
         before = random_values(rows * out, 4);

  Values run(Device& device, Epilogue epilogue = Epilogue::kStore) const {
    Tensor result = epilogue == Epilogue::kAdd ? upload(device, shape_of(rows, out), before)
                                               : result_tensor(device, shape_of(rows, out));
    device.linear(upload(device, shape_of(rows, in), x), {}, upload_weight(device, w, in, out, DType::kInt8),
                  upload(device, {static_cast<std::int64_t>(out)}, bias), epilogue, result);
    return download(device, result);
  }

  void check(double tolerance, Epilogue epilogue = Epilogue::kStore) const {
    const Values rounded_w = turned(from_int8(turned(w, out), in), in);
    const auto want = naive::linear(from_int8(x, in), rounded_w, bias, rows, in, out, epilogue, before);
    on_every_cpu([&](Device& device) {
      CAPTURE(rows);
      CAPTURE(in);
      CAPTURE(static_cast<int>(epilogue));
      CHECK(difference("out", run(device, epilogue), want, out, tolerance) == "");
    });
  }
};

double tolerance(std::size_t in) {
  return 1e-6 * (1.0 + std::sqrt(static_cast<double>(in)));
}

TEST_CASE("a product with 8-bit weights agrees with its formula for every odd shape") {
  for (const std::size_t rows : {0u, 1u, 2u, 4u, 5u, 6u, 11u, 23u, 24u, 33u}) {
    for (const std::size_t in : {1u, 2u, 63u, 64u, 65u, 264u}) {
      for (const std::size_t out : {1u, 2u, 31u, 33u, 64u, 257u}) Product{rows, in, out}.check(tolerance(in));
    }
  }
}

TEST_CASE("a product with 8-bit weights applies every epilogue") {
  for (const std::size_t rows : {1u, 7u, 13u}) {
    for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kGelu, Epilogue::kAdd}) {
      Product{rows, 24, 17}.check(tolerance(24), epilogue);
    }
  }
}

TEST_CASE("rounding to 8 bits moves a number by half a step at most, and the largest of a group hardly") {
  const std::size_t in = 3 * kGroup, out = 70;
  Values w = random_values(in * out, 5);
  for (std::size_t i = 0; i < w.size(); ++i)
    w[i] *= std::ldexp(1.0f, static_cast<int>(i % in / 64) * 10 - 10);
  on_every_cpu([&](Device& device) {
    const Weight weight = upload_weight(device, w, out, in, DType::kInt8, WeightOrder::kOutputFirst);
    const auto* const panels = weight.packed.data<Int8Panel>();
    int wrong = 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const std::size_t first = i / kGroup * kGroup;
      float largest = 0.0f;
      for (std::size_t j = first; j < first + kGroup; ++j) largest = std::max(largest, std::abs(w[j]));
      const auto column = static_cast<std::int64_t>(i / in), row = static_cast<std::int64_t>(i % in);
      const float got = weight_of(panels + column / kPanel * 3, row, column % kPanel);
      const float allowed = std::abs(w[i]) == largest ? 1e-6f * largest : 0.5001f / 127.0f * largest;
      if (std::abs(got - w[i]) > allowed) ++wrong;
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("8-bit weights of both orders and every odd shape come back as they were rounded") {
  for (const std::size_t in : {1u, 3u, 64u, 65u, 200u}) {
    for (const std::size_t out : {1u, 31u, 64u, 65u, 300u}) {
      const Values rows = random_values(in * out, 6), want = from_int8(rows, in), columns = turned(rows, in);
      std::vector<std::int32_t> ids(out);
      std::iota(ids.begin(), ids.end(), 0);
      on_every_cpu([&](Device& device) {
        CAPTURE(in);
        for (const WeightOrder order : {WeightOrder::kOutputFirst, WeightOrder::kInputFirst}) {
          const Weight weight = order == WeightOrder::kOutputFirst
                                    ? upload_weight(device, rows, out, in, DType::kInt8, order)
                                    : upload_weight(device, columns, in, out, DType::kInt8, order);
          Tensor got = result_tensor(device, shape_of(out, in));
          device.embedding(make_batch(device, {{0, static_cast<int>(out)}}, ids), weight,
                           upload(device, shape_of(out, in), Values(in * out, -0.0f)), got);
          CHECK(difference("weights", download(device, got), want, in, 0.0) == "");
        }
      });
    }
  }
}

TEST_CASE("a row gets the same bits alone and among others, on any number of threads and any instructions") {
  const std::size_t in = 200, out = 100;
  const Product all{40, in, out};
  Values first_fused;
  on_every_cpu([&](Device& device) {
    const Values together = all.run(device);
    Values alone;
    for (std::size_t rows = 1; rows <= 40; ++rows) {
      Product some{rows, in, out};
      std::copy_n(all.x.begin(), rows * in, some.x.begin());
      const Values got = some.run(device);
      CAPTURE(rows);
      CHECK(same_bits(got,
                      Values(together.begin(), together.begin() + static_cast<std::ptrdiff_t>(rows * out))));
      Product one{1, in, out};
      std::copy_n(all.x.begin() + static_cast<std::ptrdiff_t>((rows - 1) * in), in, one.x.begin());
      const Values row = one.run(device);
      alone.insert(alone.end(), row.begin(), row.end());
    }
    CHECK(same_bits(alone, together));
    // The oldest instructions and the emulated ones round twice where the others multiply and add at once.
    const std::string name = device.description();
    if (name.ends_with("SSE4") || name.ends_with("SSSE3") || name.ends_with("SCALAR") ||
        name.ends_with("EMU128")) {
      return;
    }
    if (first_fused.empty()) first_fused = together;
    CHECK(same_bits(together, first_fused));
  });
}

TEST_CASE("zeros, one huge value and numbers too small to divide stay numbers in 8 bits") {
  const std::size_t in = 130, out = 66;
  const auto with = [&](float common, float one) {
    Values values(in * out, common);
    values[in + 7] = one;
    return values;
  };
  const float smallest = std::numeric_limits<float>::denorm_min();
  for (const Values& odd : {with(0.0f, 0.0f), with(0.0f, 1e30f), with(1.0f, 1e30f), with(smallest, smallest),
                            with(1e-42f, -1e-42f), with(-0.0f, smallest), with(1e-3f, 1e38f)}) {
    float scale = 0.0f;
    for (const float value : odd) scale = std::max(scale, std::abs(value));
    Product weights{2, in, out}, inputs{3, in, out};
    weights.w = odd;
    weights.check(1e-5 * std::max(1.0, static_cast<double>(scale)));
    std::copy_n(odd.begin(), 3 * in, inputs.x.begin());
    inputs.check(1e-5 * std::max(1.0, static_cast<double>(scale)));
  }
}

TEST_CASE("zeros, and what fills up the last panel and the last group, are zeros in 8 bits") {
  const std::int64_t in = 70, out = 65, groups = 2, panels = 2;
  for (const Values& values : {Values(in * out, 0.0f), random_values(in * out, 7)}) {
    on_every_cpu([&](Device& device) {
      const Weight weight = upload_weight(device, values, in, out, DType::kInt8);
      CHECK(weight.packed.bytes() == panels * groups * sizeof(Int8Panel));
      int wrong = 0;
      for (std::int64_t column = 0; column < panels * kPanel; ++column) {
        const Int8Panel* const panel = weight.packed.data<Int8Panel>() + column / kPanel * groups;
        const std::int64_t c = column % kPanel;
        for (std::int64_t k = 0; k < groups * kGroup; ++k) {
          if (values[0] != 0.0f && column < out && k < in) continue;
          const Int8Panel& group = panel[k / kGroup];
          if (group.values[k % kGroup / kQuad][c][k % kQuad] != 128) ++wrong;
          if ((values[0] == 0.0f || column >= out) && group.scales[c] != 0.0f) ++wrong;
        }
      }
      CHECK(wrong == 0);
    });
  }
}

TEST_CASE("what is no number in a row of x makes that row, and no other, no numbers") {
  for (const float broken : {kNaN, kInfinity, -kInfinity}) {
    Product product{3, 100, 40};
    product.x[100 + 70] = broken;
    on_every_cpu([&](Device& device) {
      const Values got = product.run(device);
      for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::isfinite(got[i]) == (i / 40 != 1));
    });
  }
}

TEST_CASE("query_key_value with 8-bit weights puts what linear computes in its places") {
  const std::size_t width = 48, n_head = 3, capacity = 16;
  const std::vector<Sequence> sequences{{0, 13}, {3, 2}, {7, 6}};
  const Product product{21, width, 3 * width};
  on_every_cpu([&](Device& device) {
    const Values flat = product.run(device);
    const auto want =
        naive::split(sequences, naive::Doubles(flat.begin(), flat.end()), capacity, width, n_head, kCanary);
    const Shape cache{3, 3, 16, 16};
    KeysValues keys_values{upload(device, cache, Values(want.keys.size(), kCanary)),
                           upload(device, cache, Values(want.keys.size(), kCanary))};
    Tensor queries = result_tensor(device, shape_of(21, width));
    device.query_key_value(make_batch(device, sequences), upload(device, shape_of(21, width), product.x), {},
                           upload_weight(device, product.w, width, 3 * width, DType::kInt8),
                           upload(device, {static_cast<std::int64_t>(3 * width)}, product.bias), queries,
                           keys_values);
    CHECK(difference("queries", download(device, queries), want.queries, width, 0.0) == "");
    CHECK(difference("keys", download(device, keys_values.keys), want.keys, width, 0.0) == "");
    CHECK(difference("values", download(device, keys_values.values), want.values, width, 0.0) == "");
  });
}

}  // namespace
}  // namespace staircase
