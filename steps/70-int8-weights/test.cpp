#include <doctest/doctest.h>

#include <bit>
#include <limits>
#include <random>

#include "common/measure/rounding.h"
#include "common/model/weight_matrices.h"
#include "kernels/tensor.h"
#include "quantize.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/tiny_model.h"

using namespace staircase;

namespace {

constexpr auto kInt8Group = static_cast<std::size_t>(kGroup);

std::vector<std::vector<int>> values_of(const std::vector<Int8Group>& groups) {
  std::vector<std::vector<int>> values;
  for (const Int8Group& group : groups) values.emplace_back(group.values.begin(), group.values.end());
  return values;
}

std::vector<float> scales_of(const std::vector<Int8Group>& groups) {
  std::vector<float> scales;
  for (const Int8Group& group : groups) scales.push_back(group.scale);
  return scales;
}

std::vector<float> round_trip(std::span<const float> weights, std::size_t inputs, std::size_t size) {
  return dequantize(quantize(weights, inputs, size));
}

std::vector<WeightMatrix> matrices(const Model& model) {
  std::vector<WeightMatrix> found;
  for_each_matrix(model, [&](const WeightMatrix& matrix) { found.push_back(matrix); });
  return found;
}

/// Empty if the learner's round trip of the weights in float32 equals the core's int8 weights, bit for bit;
/// otherwise the first weight that differs.
std::string difference_from_core(const Model& exact, const Model& rounded) {
  const std::vector<WeightMatrix> want = matrices(rounded), weights = matrices(exact);
  const auto bits = [](float weight) { return std::bit_cast<std::uint32_t>(weight); };
  if (want.size() != weights.size()) return "another number of matrices";
  for (std::size_t m = 0; m < weights.size(); ++m) {
    const std::vector<float> got = round_trip(weights[m].values, weights[m].inputs, kInt8Group);
    if (got.size() != want[m].values.size()) return want[m].name + ": another number of weights";
    const auto [mine, core] = std::ranges::mismatch(got, want[m].values, {}, bits, bits);
    if (mine == got.end()) continue;
    const std::ptrdiff_t at = mine - got.begin(), inputs = static_cast<std::ptrdiff_t>(want[m].inputs);
    return fmt::format("{}: output {}, input {}: got {}, want {}", want[m].name, at / inputs, at % inputs,
                       *mine, *core);
  }
  return "";
}

}  // namespace

TEST_CASE("a group becomes the nearest whole numbers, and its largest weight 127") {
  // Worked out by hand: the scale is 2.54 / 127 = 0.02, and -1.272 / 0.02 is -63.6.
  const std::vector<float> weights{2.54f, 0.031f, -0.029f, 0.009f, -1.272f, 0.0f};
  const std::vector<Int8Group> groups = quantize(weights, 6, 6);
  CHECK(values_of(groups) == std::vector<std::vector<int>>{{127, 2, -1, 0, -64, 0}});
  REQUIRE(groups.size() == 1);
  CHECK(groups[0].scale == 2.54f / 127.0f);
  CHECK(groups[0].bytes() == 10);
}

TEST_CASE("ties go to the even number, as in the core") {
  const std::vector<float> weights{127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 0.75f, -0.75f};
  CHECK(values_of(quantize(weights, 9, 9)) ==
        std::vector<std::vector<int>>{{127, 0, 2, 2, 0, -2, -2, 1, -1}});
}

TEST_CASE("a large negative weight counts as much as a large positive one") {
  const std::vector<float> weights{1.0f, -127.0f, 63.0f};
  CHECK(values_of(quantize(weights, 3, 3)) == std::vector<std::vector<int>>{{1, -127, 63}});
  CHECK(round_trip(weights, 3, 3) == weights);
}

TEST_CASE("groups end where an output ends") {
  // Two outputs of five inputs, in groups of two: the largest weight of each group is 127 of its steps.
  const std::vector<float> weights{127, 1, 254, 2, 381, 508, 4, 635, 5, 762};
  const std::vector<Int8Group> groups = quantize(weights, 5, 2);
  CHECK(values_of(groups) ==
        std::vector<std::vector<int>>{{127, 1}, {127, 1}, {127}, {127, 1}, {127, 1}, {127}});
  CHECK(scales_of(groups) == std::vector<float>{1, 2, 3, 4, 5, 6});
  CHECK(dequantize(groups) == weights);
}

TEST_CASE("no weight moves by more than half a step") {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> weights(12 * 70);
  for (float& weight : weights) weight = normal(generator);
  for (const std::size_t size : {1u, 3u, 32u, 64u, 70u}) {
    const std::vector<float> rounded = round_trip(weights, 70, size);
    REQUIRE(rounded.size() == weights.size());
    int too_far = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const std::size_t row = i / 70 * 70, first = row + (i - row) / size * size;
      float largest = 0.0f;
      for (std::size_t k = first; k < std::min(first + size, row + 70); ++k) {
        largest = std::max(largest, std::abs(weights[k]));
      }
      // In double precision, the step is largest / 127; the divisions and products also round.
      too_far += std::abs(static_cast<double>(rounded[i]) - weights[i]) > (0.5 + 1e-4) * largest / 127.0;
    }
    CAPTURE(size);
    CHECK(too_far == 0);
  }
}

TEST_CASE("zeros, a single huge weight and weights that are hardly above 0 come back as finite numbers") {
  // Loading rejects values beyond the largest bfloat16.
  const float huge = 255 * 0x1p120f, tiny = std::numeric_limits<float>::denorm_min();
  CHECK(round_trip(std::vector<float>(5, 0.0f), 5, 5) == std::vector<float>(5, 0.0f));
  const std::vector<float> with_huge = round_trip(std::vector<float>{1.0f, -huge, 2.0f}, 3, 3);
  CHECK(with_huge == std::vector<float>{0.0f, -(huge / 127.0f) * 127.0f, 0.0f});
  CHECK(std::isfinite(with_huge[1]));
  for (const float factor : {1.0f, 60.0f, 100.0f, 190.0f, 1000.0f}) {
    const std::vector<float> weights{factor * tiny, -tiny, 0.0f};
    CAPTURE(factor);
    for (const Int8Group& group : quantize(weights, 3, 3)) {
      for (const std::int8_t value : group.values) CHECK(std::abs(value) <= (group.scale > 0.0f ? 127 : 0));
    }
    // A scale of 0 leaves nothing of the weights; any other scale keeps them within one step.
    CHECK(std::abs(round_trip(weights, 3, 3)[0] - weights[0]) <= std::max(factor, 127.0f) * tiny);
  }
}

TEST_CASE("every weight of the tales is the core's, to the bit") {
  CHECK(difference_from_core(tales(), tales_in(DType::kInt8)) == "");
}

TEST_CASE("the same holds if an output has less than a group") {
  const TinyModel tiny;  // of 24 and 50 inputs
  const TemporaryFolder folder;
  tiny.write(folder.path());
  CHECK(difference_from_core(Model::load(folder.path(), make_test_device(1)),
                             Model::load(folder.path(), make_test_device(1), DType::kInt8)) == "");
}

TEST_CASE("the bytes are those in the formula of the memory") {
  std::size_t bytes = 0, count = 0;
  for (const WeightMatrix& matrix : matrices(tales())) {
    count += matrix.values.size();
    for (const Int8Group& group : quantize(matrix.values, matrix.inputs, kInt8Group)) bytes += group.bytes();
  }
  CHECK(count == 5'767'168);
  CHECK(bytes == matrix_bytes(DType::kInt8, count));
  CHECK(bytes == count + 4 * count / 64);  // 1.0625 bytes per weight
}

TEST_CASE("the error grows with the groups, and most with one scale for a matrix that has an outlier") {
  for (const WeightMatrix& matrix : matrices(tales())) {
    const auto error = [&](std::size_t inputs, std::size_t size) {
      return relative_error(matrix.values, round_trip(matrix.values, inputs, size));
    };
    const std::size_t all = matrix.values.size();
    CAPTURE(matrix.name);
    CHECK(error(matrix.inputs, 32) > 0.005);
    CHECK(error(matrix.inputs, 32) < error(matrix.inputs, 64));
    CHECK(error(matrix.inputs, 64) < error(matrix.inputs, 128));
    CHECK(error(matrix.inputs, 64) < 0.0065);
    CHECK(error(matrix.inputs, 128) < error(matrix.inputs, matrix.inputs));
    CHECK(error(matrix.inputs, matrix.inputs) < error(all, all));
    if (matrix.name == "h.1.mlp.c_proj.weight") CHECK(error(all, all) > 0.06);
  }
}

TEST_CASE("--show-rounding prints the error of each matrix, and the text stays the same") {
  const std::string arguments = "--prompt \"Once upon a time\" --max-new-tokens 5";
  const ProgramRun plain = run_program(STAIRCASE_STEP_PROGRAM, arguments);
  const ProgramRun shown = run_program(STAIRCASE_STEP_PROGRAM, arguments + " --show-rounding");
  REQUIRE(shown.status == 0);
  CHECK(shown.out == plain.out);
  CHECK(plain.err.find("wte.weight") == std::string::npos);
  const std::string table = rounding_errors(tales(), round_trip).text(3);
  CHECK(contains(shown.err, table));
  CHECK(std::ranges::count(table, '\n') == 1 + 1 + 6 * 4);
}
