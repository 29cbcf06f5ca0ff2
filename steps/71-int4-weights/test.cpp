#include <doctest/doctest.h>

#include <bit>
#include <limits>
#include <random>

#include "common/measure/rounding.h"
#include "common/model/weight_matrices.h"
#include "kernels/tensor.h"
#include "quantize_int4.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/tiny_model.h"

using namespace staircase;

namespace {

constexpr auto kSize = static_cast<std::size_t>(kInt4Group);

/// The integers of a group, and its scale.
std::vector<int> values_of(const Int4Group& group) {
  std::vector<int> values;
  for (std::size_t k = 0; k < group.count; ++k) {
    const int byte = group.halves[k / 2];
    values.push_back((k % 2 == 0 ? byte % 16 : byte / 16) - 8);
  }
  return values;
}
float scale_of(const Int4Group& group) {
  return std::bit_cast<float>(std::uint32_t{group.scale} << 16);
}

std::vector<float> round_trip(std::span<const float> weights, std::size_t inputs, std::size_t size) {
  return dequantize(quantize_int4(weights, inputs, size));
}

std::vector<WeightMatrix> matrices(const Model& model) {
  std::vector<WeightMatrix> found;
  for_each_matrix(model, [&](const WeightMatrix& matrix) { found.push_back(matrix); });
  return found;
}

/// Empty if the learner's round trip of the weights in float32 equals the core's int4 weights, bit for bit;
/// otherwise the first weight that differs. The token embedding stays in int8 there.
std::string difference_from_core(const Model& exact, const Model& rounded) {
  const std::vector<WeightMatrix> want = matrices(rounded), weights = matrices(exact);
  const auto bits = [](float weight) { return std::bit_cast<std::uint32_t>(weight); };
  if (want.size() != weights.size()) return "another number of matrices";
  for (std::size_t m = 0; m < weights.size(); ++m) {
    const auto& [name, inputs, values] = weights[m];
    const std::vector<float> got = name == "wte.weight" ? dequantize(quantize(values, inputs, kGroup))
                                                        : round_trip(values, inputs, kSize);
    if (got.size() != values.size()) return name + ": another number of weights";
    const auto [mine, core] = std::ranges::mismatch(got, want[m].values, {}, bits, bits);
    if (mine == got.end()) continue;
    const std::ptrdiff_t at = mine - got.begin(), width = static_cast<std::ptrdiff_t>(inputs);
    return fmt::format("{}: output {}, input {}: got {}, want {}", name, at / width, at % width, *mine,
                       *core);
  }
  return "";
}

}  // namespace

TEST_CASE("a group becomes the nearest whole numbers, and the weight furthest from zero -8") {
  // Worked out by hand: the scale is 2 / -8 = -0.25, a number of bfloat16; then 0.4 / -0.25 = -1.6, and so
  // on.
  const std::vector<float> weights{0.4f, 2.0f, -0.9f, 0.1f, -1.75f};
  const std::vector<Int4Group> groups = quantize_int4(weights, 5, 5);
  REQUIRE(groups.size() == 1);
  CHECK(scale_of(groups[0]) == -0.25f);
  CHECK(values_of(groups[0]) == std::vector<int>{-2, -8, 4, 0, 7});
  CHECK(dequantize(groups) == std::vector<float>{0.5f, 2.0f, -1.0f, 0.0f, -1.75f});
}

TEST_CASE("two weights share a byte, the first in its lower half") {
  const std::vector<float> weights{-8.0f, 7.0f, 0.0f, -1.0f, 3.0f};
  const std::vector<Int4Group> groups = quantize_int4(weights, 5, 5);
  REQUIRE(groups.size() == 1);
  CHECK(scale_of(groups[0]) == 1.0f);
  REQUIRE(groups[0].halves.size() == 3);
  CHECK(groups[0].halves[0] == 0xF0);
  CHECK(groups[0].halves[1] == 0x78);
  CHECK(groups[0].halves[2] % 16 == 11);
  CHECK(groups[0].bytes() == 5);
  CHECK(dequantize(groups) == weights);
}

TEST_CASE(
    "of two weights equally far from zero the first becomes -8, and the other one keeps what 7 steps hold") {
  CHECK(values_of(quantize_int4(std::vector<float>{1.0f, -8.0f, 8.0f}, 3, 3)[0]) ==
        std::vector<int>{1, -8, 7});
  CHECK(values_of(quantize_int4(std::vector<float>{1.0f, 8.0f, -8.0f}, 3, 3)[0]) ==
        std::vector<int>{-1, -8, 7});
}

TEST_CASE("weights are divided by the stored scale of 16 bits") {
  // 8.05 / -8 becomes -1.0078125 in bfloat16; 3.5246 times that is closer to 4 by the scale before it.
  const std::vector<float> weights{-8.05f, 3.525f, -8.05f};
  const std::vector<Int4Group> groups = quantize_int4(weights, 3, 3);
  CHECK(scale_of(groups[0]) == 1.0078125f);
  CHECK(values_of(groups[0]) == std::vector<int>{-8, 3, -8});
}

TEST_CASE("ties go to the even number, as in the core") {
  const std::vector<float> weights{-8.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 6.5f};
  CHECK(values_of(quantize_int4(weights, 8, 8)[0]) == std::vector<int>{-8, 0, 2, 2, 0, -2, -2, 6});
}

TEST_CASE("groups end where an output ends") {
  const std::vector<float> weights{-8, 1, -16, 2, -24, -32, 4, -40, 5, -48};
  const std::vector<Int4Group> groups = quantize_int4(weights, 5, 2);
  REQUIRE(groups.size() == 6);
  for (int g = 0; g < 6; ++g) {
    CHECK(scale_of(groups[g]) == static_cast<float>(g + 1));
    CHECK(values_of(groups[g]) == (g % 3 == 2 ? std::vector<int>{-8} : std::vector<int>{-8, 1}));
  }
  CHECK(dequantize(groups) == weights);
}

TEST_CASE("zeros, a single huge weight and weights that are hardly above 0 come back as finite numbers") {
  // Loading rejects values beyond the largest bfloat16.
  const float huge = 255 * 0x1p120f, tiny = std::numeric_limits<float>::denorm_min();
  CHECK(round_trip(std::vector<float>(5, 0.0f), 5, 5) == std::vector<float>(5, 0.0f));
  const std::vector<float> with_huge = round_trip(std::vector<float>{1.0f, -huge, 2.0f}, 3, 3);
  CHECK(with_huge[0] == 0.0f);
  CHECK(with_huge[1] / huge == doctest::Approx(-1.0).epsilon(0.004));
  CHECK(with_huge[2] == 0.0f);
  for (const float factor : {1.0f, 1e4f, 6e5f, 1e7f}) {
    const std::vector<float> weights{factor * tiny, -tiny, 0.0f};
    CAPTURE(factor);
    // A scale of 0 leaves nothing of the weights. Steps of a bfloat16 are 65,536 times the smallest float32.
    CHECK(std::abs(round_trip(weights, 3, 3)[0] - weights[0]) <=
          std::max(0.3f * factor, 8.0f * 65'536.0f) * tiny);
    if (factor == 1.0f) CHECK(values_of(quantize_int4(weights, 3, 3)[0]) == std::vector<int>{0, 0, 0});
  }
}

TEST_CASE("no weight moves by more than half a step, except those that are as far on the other side") {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> weights(12 * 70);
  for (float& weight : weights) weight = normal(generator);
  for (const std::size_t size : {1u, 3u, 32u, 70u}) {
    const std::vector<float> rounded = round_trip(weights, 70, size);
    REQUIRE(rounded.size() == weights.size());
    int too_far = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const std::size_t row = i / 70 * 70, first = row + (i - row) / size * size;
      double furthest = 0.0;
      for (std::size_t k = first; k < std::min(first + size, row + 70); ++k) {
        if (std::abs(weights[k]) > std::abs(furthest)) furthest = weights[k];
      }
      // A scale in bfloat16 is off by at most 1/256. Values beyond 7 steps on the other side become 7.
      const double step = furthest / -8.0, beyond = std::max(0.0, weights[i] / step - 7.0);
      too_far += std::abs(static_cast<double>(rounded[i]) - weights[i]) >
                 (std::max(0.5, beyond) + 8.0 / 256) * std::abs(step);
    }
    CAPTURE(size);
    CHECK(too_far == 0);
  }
}

TEST_CASE("every weight of the tales is the core's, to the bit") {
  CHECK(difference_from_core(tales(), tales_in(DType::kInt4)) == "");
}

TEST_CASE("the same holds if an output does not have whole groups") {
  const TinyModel tiny;  // of 24 and 50 inputs
  const TemporaryFolder folder;
  tiny.write(folder.path());
  CHECK(difference_from_core(Model::load(folder.path(), make_test_device(1)),
                             Model::load(folder.path(), make_test_device(1), DType::kInt4)) == "");
}

TEST_CASE("the bytes are those in the formula of the memory") {
  std::size_t bytes = 0, count = 0;
  for (const WeightMatrix& matrix : matrices(tales())) {
    count += matrix.values.size();
    for (const Int4Group& group : quantize_int4(matrix.values, matrix.inputs, kSize)) bytes += group.bytes();
  }
  CHECK(count == 5'767'168);
  CHECK(bytes == matrix_bytes(DType::kInt4, count));
  CHECK(bytes == count / 2 + 2 * count / 32);  // 0.5625 bytes per weight
}

TEST_CASE("the error is more than ten times that of 8 bits, and grows with the groups") {
  for (const WeightMatrix& matrix : matrices(tales())) {
    const auto error = [&](std::size_t inputs, std::size_t size) {
      return relative_error(matrix.values, round_trip(matrix.values, inputs, size));
    };
    CAPTURE(matrix.name);
    CHECK(error(matrix.inputs, 32) > 0.06);
    CHECK(error(matrix.inputs, 32) < 0.1);
    CHECK(error(matrix.inputs, 32) < error(matrix.inputs, 64));
    CHECK(error(matrix.inputs, 64) < error(matrix.inputs, matrix.inputs));
    const auto in_int8 = dequantize(quantize(matrix.values, matrix.inputs, 64));
    CHECK(error(matrix.inputs, 32) > 10 * relative_error(matrix.values, in_int8));
  }
}

TEST_CASE("--show-rounding prints the errors of both, and the text stays the same") {
  const std::string arguments = "--prompt \"Once upon a time\" --max-new-tokens 5";
  const ProgramRun plain = run_program(STAIRCASE_STEP_PROGRAM, arguments);
  const ProgramRun shown = run_program(STAIRCASE_STEP_PROGRAM, arguments + " --show-rounding");
  REQUIRE(shown.status == 0);
  CHECK(shown.out == plain.out);
  CHECK(plain.err.find("wte.weight") == std::string::npos);
  const std::string int4 = rounding_errors(tales(), round_trip).text(3);
  const std::string int8 =
      rounding_errors(tales(), [](auto... group) { return dequantize(quantize(group...)); }).text(3);
  CHECK(contains(shown.err, int8));
  CHECK(contains(shown.err, "in 4 bits\n" + int4));
}
