// linear and query_key_value of rows that they normalize themselves, against the two formulas one after
// another in double precision.
//
// The tolerance: a uniform row has a deviation of its half width / sqrt(3), so normalized numbers are below
// 1.8. With a weight and a bias below 1 each, they are at most 2.8. So errors are up to three times those
// that linear.cpp and sixteen_bits.cpp explain. Some widths here are so large that the sum of K products, one
// after another, counts. A product has a deviation of 0.5 and the partial sum of k of them one of 0.5
// sqrt(k), which is rounded by up to 6e-8 of it. All errors together have a deviation of 2e-8 · K, and 1e-7 ·
// K is five times that.
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

constexpr float kEpsilon = 1e-5f;

/// From that many rows on, a product may round what it multiplies; with bfloat16 it always may.
constexpr std::size_t kManyRows = 9;

double tolerance(std::size_t rows, std::size_t in, DType dtype) {
  const double root = std::sqrt(static_cast<double>(in));
  return 3e-6 * (1.0 + root) + 1e-7 * static_cast<double>(in) +
         (rows < kManyRows && dtype != DType::kBFloat16 ? 0.0 : 3.0 * rounding_error(dtype) * root);
}

/// Rows to normalize, the norm, and the weights of a product of them.
struct Inputs {
  std::size_t rows, in, out;
  Values x = random_values(rows * in, 1, 50.0f), norm_weight = random_values(in, 2),
         norm_bias = random_values(in, 3), w = random_values(in * out, 4), bias = random_values(out, 5);
  NormKind kind = NormKind::kLayer;

  naive::Doubles product(DType dtype, Epilogue epilogue = Epilogue::kStore) const {
    const auto normed = kind == NormKind::kRms
                            ? naive::rms_norm(x, norm_weight, double{kEpsilon}, rows, in)
                            : naive::layer_norm(x, norm_weight, norm_bias, double{kEpsilon}, rows, in);
    return naive::linear(Values(normed.begin(), normed.end()), rounded(w, dtype), bias, rows, in, out,
                         epilogue);
  }

  Tensor device_x(Device& device) const { return upload(device, shape_of(rows, in), x); }
  Norm norm(Device& device) const {
    const Shape shape{static_cast<std::int64_t>(in)};
    return {kind, upload(device, shape, norm_weight),
            kind == NormKind::kRms ? Tensor() : upload(device, shape, norm_bias), kEpsilon};
  }
  Weight weight(Device& device, DType dtype) const { return upload_weight(device, w, in, out, dtype); }
  Tensor device_bias(Device& device) const { return upload(device, {static_cast<std::int64_t>(out)}, bias); }
};

void check_linear(const Inputs& inputs, DType dtype, Epilogue epilogue = Epilogue::kStore) {
  const auto want = inputs.product(dtype, epilogue);
  on_every_device([&](Device& device) {
    // The result in the type of the next product.
    const DType stored = device.operand_dtype(static_cast<std::int64_t>(inputs.rows), dtype);
    for (const DType out_dtype : {DType::kFloat32, stored}) {
      Tensor result = result_tensor(device, shape_of(inputs.rows, inputs.out), out_dtype);
      const Tensor x = inputs.device_x(device);
      device.linear(x, inputs.norm(device), inputs.weight(device, dtype), inputs.device_bias(device),
                    epilogue, result);
      CAPTURE(inputs.rows);
      CAPTURE(inputs.in);
      INFO("weights in ", to_string(dtype), ", out in ", to_string(out_dtype));
      CHECK(difference("out", download_any(device, result), want, inputs.out,
                       tolerance(inputs.rows, inputs.in, dtype) + rounding_of_largest(want, out_dtype)) ==
            "");
      CHECK(same_bits(download(device, x), inputs.x));
    }
  });
}

TEST_CASE("linear normalizes a few rows and many of every odd width") {
  for (const DType dtype : kTypes) {
    for (const std::size_t rows : {0u, 1u, 2u, 3u, 4u, 5u, 8u, 9u, 33u}) {
      for (const std::size_t in : {1u, 3u, 8u, 12u, 31u, 33u, 64u, 100u, 264u}) {
        for (const std::size_t out : {1u, 5u, 33u}) check_linear({rows, in, out}, dtype);
      }
    }
  }
}

TEST_CASE("linear takes rows through an RMS norm") {
  for (const DType dtype : kTypes) {
    for (const std::size_t rows : {1u, 2u, 5u, 9u, 33u}) {
      for (const std::size_t in : {1u, 8u, 31u, 100u, 264u}) {
        Inputs inputs{rows, in, 33};
        for (float& value : inputs.x) value += 10.0f;
        inputs.kind = NormKind::kRms;
        check_linear(inputs, dtype);
      }
    }
  }
}

TEST_CASE("linear applies GELU to products of rows that it normalized") {
  for (const DType dtype : kTypes) {
    for (const std::size_t rows : {1u, 5u, 9u, 33u}) check_linear({rows, 100, 33}, dtype, Epilogue::kGelu);
  }
}

// A GPU multiplies up to 32 rows by 32 inputs at a time: on tensor cores, if the weights are bfloat16.
TEST_CASE("linear normalizes up to 32 rows of whole pieces of 32 inputs") {
  for (const DType dtype : kTypes) {
    for (const std::size_t rows : {2u, 8u, 9u, 16u, 17u, 31u, 32u, 33u}) {
      for (const std::size_t in : {32u, 96u, 256u, 1056u, 1312u}) check_linear({rows, in, 17}, dtype);
    }
    for (const Epilogue epilogue : {Epilogue::kGelu, Epilogue::kGeluErf})
      check_linear({11, 288, 33}, dtype, epilogue);
  }
}

// Four rows of 2048 floats are what the GPU's kernel takes into its block; 48 KiB, all that it may, are four
// of 3072.
TEST_CASE("linear normalizes the rows of every published width") {
  for (const std::size_t rows : {1u, 3u, 4u, 6u}) {
    for (const std::size_t in : {768u, 1600u, 2048u, 2056u, 3072u, 3080u, 4096u, 8192u}) {
      for (const DType dtype : kTypes) check_linear({rows, in, 3}, dtype);
    }
  }
}

TEST_CASE("query_key_value normalizes the rows that it multiplies") {
  const std::size_t capacity = 16, width = 24, n_head = 3;
  const std::vector<Sequence> batches[] = {{{0, 1}}, {{2, 3}}, {{5, 1}, {0, 2}, {9, 1}}, {{0, 13}}};
  for (const auto& sequences : batches) {
    std::size_t n_tokens = 0;
    for (const Sequence& s : sequences) n_tokens += static_cast<std::size_t>(s.count);
    const Inputs inputs{n_tokens, width, 3 * width};
    for (const DType dtype : kTypes) {
      const auto want = naive::split(sequences, inputs.product(dtype), capacity, width, n_head,
                                     static_cast<double>(kCanary));
      on_every_device([&](Device& device) {
        INFO(to_string(dtype));
        const double within = tolerance(n_tokens, width, dtype);
        check_query_key_value(device, sequences, inputs.device_x(device), inputs.norm(device),
                              inputs.weight(device, dtype), inputs.device_bias(device), want, n_head,
                              DType::kFloat32, within, within);
      });
    }
  }
}

}  // namespace
}  // namespace staircase
