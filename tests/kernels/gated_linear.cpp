// linear with kSiluGate against silu(x W_gate + b_gate) · (x W_up + b_up) in double precision, and kGeluGate
// with gelu in the place of silu.
//
// The tolerance is that of the two products (linear.cpp, sixteen_bits.cpp, int8_int4.cpp), times the factors
// of their errors. Each factor is below the largest that occurs, and silu and gelu are at most 1.13 times
// as steep as their argument.
#include "tests/kernels/few_bits.h"
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

constexpr DType kAllTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt8,
                               DType::kInt4};

/// Outputs [outputs, in] of gate and up in turns, the last ones filled up with zeros.
Values in_turns(const Values& gate, const Values& up, std::size_t in) {
  const std::size_t inner = gate.size() / in, columns = kGateColumns;
  const std::size_t turns = (inner + columns - 1) / columns;
  Values result(2 * turns * columns * in);
  for (std::size_t i = 0; i < inner; ++i) {
    const std::size_t place = i / columns * 2 * columns + i % columns;
    std::copy_n(gate.data() + i * in, in, result.data() + place * in);
    std::copy_n(up.data() + i * in, in, result.data() + (place + columns) * in);
  }
  return result;
}

struct Gated {
  DType dtype;
  std::size_t rows, in, inner;
  bool has_bias = true;
  Epilogue epilogue = Epilogue::kSiluGate;
  // In few bits, x is rounded in groups, which is not part of the formula: here it is rounded already.
  Values x = input(), gate = random_values(inner * in, 2), up = random_values(inner * in, 3),
         gate_bias = random_values(has_bias ? inner : 0, 4), up_bias = random_values(has_bias ? inner : 0, 5);

  Values input() const {
    const Values values = random_values(rows * in, 1, 2.0f);
    return is_quantized(dtype) ? rounded(values, in, dtype, true) : rounded(values, dtype);
  }

  Values as_kept(const Values& w) const {
    return is_quantized(dtype) ? rounded(w, in, dtype) : rounded(w, dtype);
  }

  /// A GPU takes x and weights of few bits to 16 bits if there are many rows (few_bits_on_gpu.cpp).
  naive::Doubles wanted(const Device& device) const {
    const bool is_widened = is_quantized(dtype) && !has_one_kernel(device);
    const DType operand =
        is_widened ? device.operand_dtype(static_cast<std::int64_t>(rows), dtype) : DType::kFloat32;
    const auto factor = [&](const Values& w, const Values& bias) {
      return naive::linear(rounded(x, operand), turned(rounded(as_kept(w), operand), in), bias, rows, in,
                           inner);
    };
    return naive::gated(factor(gate, gate_bias), factor(up, up_bias), epilogue);
  }

  Values run(Device& device, DType out_dtype = DType::kFloat32) const {
    const Values w = in_turns(gate, up, in);
    const Weight weight = upload_weight(device, w, w.size() / in, in, dtype, WeightOrder::kOutputFirst);
    Tensor bias;
    if (has_bias) bias = upload(device, {weight.out_features}, in_turns(gate_bias, up_bias, 1));
    Tensor out = result_tensor(device, shape_of(rows, inner), out_dtype);
    device.linear(upload(device, shape_of(rows, in), x), {}, weight, bias, epilogue, out);
    return download_any(device, out);
  }

  void check() const {
    const double largest = 3.0 * std::sqrt(static_cast<double>(in));
    const auto test = [&](Device& device) {
      const auto want = wanted(device);
      const double products = 1e-6 * (1.0 + std::sqrt(static_cast<double>(in)));
      for (const DType out_dtype : {DType::kFloat32, device.operand_dtype(1000, dtype)}) {
        CAPTURE(rows);
        CAPTURE(in);
        CAPTURE(inner);
        CAPTURE(has_bias);
        CAPTURE(static_cast<int>(epilogue));
        INFO("weights in ", to_string(dtype), ", out in ", to_string(out_dtype));
        CHECK(difference("out", run(device, out_dtype), want, inner,
                         2.13 * largest * products + rounding_of_largest(want, out_dtype)) == "");
      }
    };
    on_every_device(test);
  }
};

TEST_CASE("a gated product agrees with its formula for every inner width and in every type") {
  for (const DType dtype : kAllTypes) {
    for (const std::size_t inner : {1u, 15u, 16u, 17u, 31u, 32u, 33u, 48u, 100u, 257u}) {
      for (const std::size_t rows : {0u, 1u, 7u, 33u}) {
        for (const bool has_bias : {false, true}) Gated{dtype, rows, 40, inner, has_bias}.check();
        Gated{dtype, rows, 40, inner, false, Epilogue::kGeluGate}.check();
      }
    }
    for (const std::size_t in : {1u, 31u, 64u, 200u}) {
      for (const std::size_t rows : {1u, 2u, 17u, 32u, 49u, 67u}) Gated{dtype, rows, in, 24}.check();
    }
  }
}

TEST_CASE("silu and gelu of a gate are right from minus a thousand to a thousand") {
  // One input with weight 1, and an `up` of 1: the result is silu or gelu of the argument.
  for (const Epilogue epilogue : {Epilogue::kSiluGate, Epilogue::kGeluGate}) {
    Gated gated{DType::kFloat32, 1, 1, 401, false, epilogue};
    gated.x = {1.0f};
    gated.up.assign(gated.inner, 1.0f);
    for (std::size_t i = 0; i < gated.inner; ++i) {
      const double u = (static_cast<double>(i) - 200.0) / 200.0;
      gated.gate[i] = static_cast<float>(1000.0 * u * u * u);
    }
    on_every_device([&](Device& device) {
      const auto want = gated.wanted(device);
      const Values got = gated.run(device);
      for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(gated.gate[i]);
        // Next to 0, 1 + tanh of gelu's formula has lost its digits, which the other form has not.
        const double lost = epilogue == Epilogue::kGeluGate ? 1e-13 : 1e-30;
        CHECK(std::abs(static_cast<double>(got[i]) - want[i]) <= 2e-6 * std::abs(want[i]) + lost);
      }
    });
  }
}

TEST_CASE("on the CPU a row of a gated product is the same to the bit alone and among others") {
  on_every_device([](Device& device) {
    if (!has_one_kernel(device)) return;
    for (const DType dtype : kAllTypes) {
      const Gated all{dtype, 67, 100, 75};
      const Values together = all.run(device);
      CAPTURE(to_string(dtype));
      for (const std::size_t row : {0u, 8u, 66u}) {
        Gated one{dtype, 1, 100, 75};
        one.x.assign(all.x.data() + row * 100, all.x.data() + (row + 1) * 100);
        CHECK(
            same_bits(one.run(device), Values(together.data() + row * 75, together.data() + (row + 1) * 75)));
      }
    }
  });
}

}  // namespace
}  // namespace staircase
