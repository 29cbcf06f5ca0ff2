// Weights in 8 and 4 bits, on the CPU: against plain loops in double precision on the numbers as they were
// rounded.
//
// The tolerance is that of the products of float32 (linear.cpp). The sums of whole numbers are exact; only
// the chain of groups rounds, which is shorter by the size of a group.
#include "kernels/cpu/int8_int4_tile.h"
#include "tests/kernels/few_bits.h"
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

struct Product {
  DType dtype;
  std::size_t rows, in, out;
  Values x = random_values(rows * in, 1), w = random_values(in * out, 2), bias = random_values(out, 3),
         before = random_values(rows * out, 4);

  Values run(Device& device, Epilogue epilogue = Epilogue::kStore) const {
    Tensor result = epilogue == Epilogue::kAdd ? upload(device, shape_of(rows, out), before)
                                               : result_tensor(device, shape_of(rows, out));
    device.linear(upload(device, shape_of(rows, in), x), {}, upload_weight(device, w, in, out, dtype),
                  upload(device, {static_cast<std::int64_t>(out)}, bias), epilogue, result);
    return download(device, result);
  }

  void check(double tolerance, Epilogue epilogue = Epilogue::kStore) const {
    const Values rounded_w = turned(rounded(turned(w, out), in, dtype), in);
    const auto want =
        naive::linear(rounded(x, in, dtype, true), rounded_w, bias, rows, in, out, epilogue, before);
    on_every_cpu([&](Device& device) {
      CAPTURE(to_string(dtype));
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

TEST_CASE("a product with weights of few bits agrees with its formula for every odd shape") {
  for (const DType dtype : kFewBits) {
    const std::size_t group = group_of(dtype);
    for (const std::size_t rows : {0u, 1u, 2u, 4u, 5u, 6u, 11u, 24u, 33u, 59u, 60u, 67u}) {
      for (const std::size_t in :
           {std::size_t{1}, std::size_t{2}, group - 1, group, group + 1, 4 * group + 8}) {
        for (const std::size_t out : {1u, 2u, 31u, 33u, 64u, 257u}) {
          Product{dtype, rows, in, out}.check(tolerance(in));
        }
      }
    }
  }
}

TEST_CASE("a product with weights of few bits applies every epilogue") {
  for (const DType dtype : kFewBits) {
    for (const std::size_t rows : {1u, 7u, 13u}) {
      for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kGelu, Epilogue::kAdd}) {
        Product{dtype, rows, 24, 17}.check(tolerance(24), epilogue);
      }
    }
  }
}

TEST_CASE("rounding to 8 bits moves a number by at most half a step, and the largest of a group hardly") {
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

TEST_CASE("rounding to 4 bits moves no number by more than a step, and the furthest from zero hardly") {
  const std::size_t in = 3 * kInt4Group, out = 70;
  Values w = random_values(in * out, 5);
  for (std::size_t i = 0; i < w.size(); ++i)
    w[i] *= std::ldexp(1.0f, static_cast<int>(i % in / kInt4Group) * 10 - 10);
  on_every_cpu([&](Device& device) {
    const Weight weight = upload_weight(device, w, out, in, DType::kInt4, WeightOrder::kOutputFirst);
    const auto* const panels = weight.packed.data<Int4Panel>();
    int wrong = 0, beyond_half = 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const std::size_t first = i / kInt4Group * kInt4Group;
      float largest = 0.0f;
      for (std::size_t j = first; j < first + kInt4Group; ++j) largest = std::max(largest, std::abs(w[j]));
      const auto column = static_cast<std::int64_t>(i / in), row = static_cast<std::int64_t>(i % in);
      const float got = weight_of(panels + column / kPanel * 3, row, column % kPanel);
      // There is no 8: a weight on the other side that is almost as far from zero as the furthest becomes 7.
      // And a scale of 8 bits is off by at most 1/256 of itself.
      const float step = largest / 8.0f, error = std::abs(got - w[i]);
      if (error > (std::abs(w[i]) == largest ? 8.001f / 256.0f : 1.05f) * step) ++wrong;
      if (error > 0.55f * step) ++beyond_half;
    }
    CHECK(wrong == 0);
    CHECK(beyond_half < 0.05 * static_cast<double>(w.size()));
  });
}

TEST_CASE("weights of few bits, both orders and every odd shape come back as rounded") {
  for (const DType dtype : kFewBits) {
    for (const std::size_t in : {1u, 3u, 32u, 33u, 64u, 65u, 200u}) {
      for (const std::size_t out : {1u, 31u, 64u, 65u, 300u}) {
        Values rows = random_values(in * out, 6);
        // Whole numbers in a half of them: many are the furthest from zero then, on both sides.
        std::transform(rows.begin(), rows.begin() + rows.size() / 2, rows.begin(),
                       [](float value) { return std::nearbyint(4.0f * value); });
        const Values want = rounded(rows, in, dtype), columns = turned(rows, in);
        std::vector<std::int32_t> ids(out);
        std::iota(ids.begin(), ids.end(), 0);
        on_every_cpu([&](Device& device) {
          CAPTURE(to_string(dtype));
          CAPTURE(in);
          for (const WeightOrder order : {WeightOrder::kOutputFirst, WeightOrder::kInputFirst}) {
            const Weight weight = order == WeightOrder::kOutputFirst
                                      ? upload_weight(device, rows, out, in, dtype, order)
                                      : upload_weight(device, columns, in, out, dtype, order);
            Tensor got = result_tensor(device, shape_of(out, in));
            device.embedding(make_batch(device, {{0, static_cast<int>(out)}}, ids), weight,
                             upload(device, shape_of(out, in), Values(in * out, -0.0f)), got);
            CHECK(difference("weights", download(device, got), want, in, 0.0) == "");
          }
        });
      }
    }
  }
}

/// Checks that a row gets the same bits alone and among others, on any number of threads and any
/// instructions.
void check_equal_bits(DType dtype) {
  const std::size_t in = 200, out = 100;
  const Product all{dtype, 67, in, out};
  Values first_fused;
  on_every_cpu([&](Device& device) {
    const Values together = all.run(device);
    Values alone;
    for (std::size_t rows = 1; rows <= all.rows; ++rows) {
      Product some{dtype, rows, in, out};
      std::copy_n(all.x.begin(), rows * in, some.x.begin());
      const Values got = some.run(device);
      CAPTURE(rows);
      CHECK(same_bits(got,
                      Values(together.begin(), together.begin() + static_cast<std::ptrdiff_t>(rows * out))));
      Product one{dtype, 1, in, out};
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

TEST_CASE("a row gets the same bits alone and among others, on any number of threads and any instructions") {
  for (const DType dtype : kFewBits) {
    CAPTURE(to_string(dtype));
    check_equal_bits(dtype);
  }
}

TEST_CASE("zeros, one huge value and numbers too small to divide stay numbers in few bits") {
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
    for (const DType dtype : kFewBits) {
      Product weights{dtype, 2, in, out}, inputs{dtype, 3, in, out};
      weights.w = odd;
      weights.check(1e-5 * std::max(1.0, static_cast<double>(scale)));
      std::copy_n(odd.begin(), 3 * in, inputs.x.begin());
      inputs.check(1e-5 * std::max(1.0, static_cast<double>(scale)));
    }
  }
}

TEST_CASE("the largest weights that bfloat16 holds come back from few bits as finite numbers") {
  const float most = 0x1.FEp127f;
  const std::size_t in = 70, out = 66;
  Values rows(in * out, most / 3.0f);
  rows[1] = rows[40] = most;
  rows[in + 69] = -most;
  for (const DType dtype : kFewBits) {
    on_every_cpu([&](Device& device) {
      CAPTURE(to_string(dtype));
      Tensor got = result_tensor(device, shape_of(2, in));
      device.embedding(make_batch(device, {{0, 2}}, {0, 1}),
                       upload_weight(device, rows, out, in, dtype, WeightOrder::kOutputFirst),
                       upload(device, shape_of(2, in), Values(2 * in, -0.0f)), got);
      const Values values = download(device, got);
      for (const float value : values) CHECK(std::isfinite(value));
      CHECK(values[1] / most == doctest::Approx(1.0f).epsilon(1e-6));
      CHECK(values[in + 69] / most == doctest::Approx(-1.0f).epsilon(1e-6));
    });
  }
}

template <typename Panel>
void check_zeros(DType dtype) {
  const std::int64_t in = 70, out = 65, groups = divide_up(in, Panel::kInputs), panels = 2;
  for (const Values& values : {Values(in * out, 0.0f), random_values(in * out, 7)}) {
    on_every_cpu([&](Device& device) {
      CAPTURE(to_string(dtype));
      const Weight weight = upload_weight(device, values, in, out, dtype);
      CHECK(weight.packed.bytes() == static_cast<std::size_t>(panels * groups) * sizeof(Panel));
      int wrong = 0;
      for (std::int64_t column = 0; column < panels * kPanel; ++column) {
        const Panel* const panel = weight.packed.data<Panel>() + column / kPanel * groups;
        const std::int64_t c = column % kPanel;
        for (std::int64_t k = 0; k < groups * Panel::kInputs; ++k) {
          if (values[0] != 0.0f && column < out && k < in) continue;
          if (whole_of(panel, k, c) != 0) ++wrong;
          if ((values[0] == 0.0f || column >= out) && scale_of(panel[k / Panel::kInputs], c) != 0.0f) ++wrong;
        }
      }
      CHECK(wrong == 0);
    });
  }
}

TEST_CASE("zeros, and the padding of the last panel and the last group, are zeros in few bits") {
  check_zeros<Int8Panel>(DType::kInt8);
  check_zeros<Int4Panel>(DType::kInt4);
}

TEST_CASE("a byte has two neighbouring inputs of four in 4 bits, and what was added to 8 bits is 128") {
  // The inputs 0 .. 31 of one output: 7 of them, one after another, and -8, which sets the scale to 1.
  Values w(kInt4Group, 0.0f);
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i % 16) - 8.0f;
  on_every_cpu([&](Device& device) {
    const Weight four = upload_weight(device, w, w.size(), 1, DType::kInt4),
                 eight = upload_weight(device, Values(1, -2.0f), 1, 1, DType::kInt8);
    const auto& group = *four.packed.data<Int4Panel>();
    CHECK(float32_from_bfloat16(group.scales[0]) == 1.0f);
    for (std::int64_t k = 0; k < kInt4Group; ++k) {
      const int byte = group.values[k / 8][0][k % 4];
      CHECK((k % 8 < 4 ? byte % 16 : byte / 16) == k % 16);
    }
    CHECK(eight.packed.data<Int8Panel>()->values[0][0][0] == 128 - 127);
  });
}

TEST_CASE("a NaN in a row of x makes that row NaN, and no other") {
  for (const DType dtype : kFewBits)
    for (const float broken : {kNaN, kInfinity, -kInfinity}) {
      Product product{dtype, 3, 100, 40};
      product.x[100 + 70] = broken;
      on_every_cpu([&](Device& device) {
        const Values got = product.run(device);
        for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::isfinite(got[i]) == (i / 40 != 1));
      });
    }
}

/// Checks that query_key_value puts what linear computes in its places.
void check_places(DType dtype) {
  const std::size_t width = 48, n_head = 3, capacity = 16;
  const std::vector<Sequence> sequences{{0, 13}, {3, 2}, {7, 6}};
  const Product product{dtype, 21, width, 3 * width};
  on_every_cpu([&](Device& device) {
    const Values flat = product.run(device);
    const auto want =
        naive::split(sequences, naive::Doubles(flat.begin(), flat.end()), capacity, width, n_head, kCanary);
    check_query_key_value(device, sequences, upload(device, shape_of(21, width), product.x), {},
                          upload_weight(device, product.w, width, 3 * width, dtype),
                          upload(device, {static_cast<std::int64_t>(3 * width)}, product.bias), want, n_head,
                          DType::kFloat32, 0.0, 0.0);
  });
}

TEST_CASE("query_key_value with weights of few bits puts what linear computes in its places") {
  for (const DType dtype : kFewBits) check_places(dtype);
}

}  // namespace
}  // namespace staircase
