// The whole model on a GPU, or on the emulated one: the logits are those of transformers, alone, in batches
// and with a cache.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "common/decoding/static_kv_cache.h"
#include "common/model/model.h"
#include "common/model/safetensors.h"
#include "common/model/weight_matrices.h"
#include "tests/compare.h"
#include "tests/least_vectors.h"
#include "tests/test_device.h"

namespace staircase {
namespace {

#ifdef STAIRCASE_CUDA_EMULATION
constexpr bool kNoGpu = false;
// Tokens; the emulation is slow. Below nine and above: both kinds of product.
constexpr std::size_t kLongest = 70, kLongestOf16Bits = 40;
// What no reference holds is as true of a model with a tenth of the work.
constexpr const char* kWithoutReference = "models/tales-1m";
constexpr int kOverlappingPasses = 4;
#else
const bool kNoGpu = !tests_are_for_gpu();
constexpr std::size_t kLongest = 512, kLongestOf16Bits = 512;
constexpr const char* kWithoutReference = "models/tales-6m";
constexpr int kOverlappingPasses = 5000;
#endif

/// How far a logit may be from the one in float32 on the CPU.
constexpr double kTolerance = 1e-3, kFloat16Tolerance = 2e-2, kBFloat16Tolerance = 1e-1;
/// How far from the one on the CPU with the same weights in int8 or int4: there each row of x is in 8 bits,
/// too.
constexpr double kFewBitsTolerance = 4e-1;

const std::filesystem::path kSource = STAIRCASE_SOURCE_TREE;

Model tales_on_gpu(DType dtype = DType::kFloat32, const char* model = "models/tales-6m") {
  return Model::load(kSource / model, make_cuda_device(), dtype);
}

std::vector<float> copy(std::span<const float> values) {
  return {values.begin(), values.end()};
}

/// Compares the logits after every text of the reference of at most `longest` tokens. Returns the largest
/// difference.
double difference_from_transformers(Model& model, std::size_t longest, double tolerance) {
  std::ifstream file(kSource / "tests/reference/logits.json");
  const nlohmann::json cases = nlohmann::json::parse(file).at("cases");
  const Safetensors tensors(kSource / "tests/reference/logits.safetensors");
  double largest = 0.0;
  int lengths = 0;
  for (const auto& reference : cases) {
    const auto tokens = reference.at("tokens").get<std::vector<int>>();
    if (tokens.size() > longest) continue;
    const std::string name = reference.at("name").get<std::string>() + ".last_logits";
    const StoredTensor* const stored = tensors.find(name);
    REQUIRE(stored != nullptr);
    std::vector<float> want(stored->bytes.size() / sizeof(float));
    std::memcpy(want.data(), stored->bytes.data(), stored->bytes.size());
    const std::vector<float> got = copy(model.next_logits(tokens));
    CHECK(difference(name, got, want, want.size(), tolerance) == "");
    if (model.dtype() == DType::kFloat32) CHECK(argmax(got) == reference.at("argmax").get<int>());
    largest = std::max(largest, largest_difference<float>(got, want).largest);
    ++lengths;
  }
  CHECK(lengths >= 3);
  return largest;
}

TEST_CASE("on a GPU the logits are those of transformers" * doctest::skip(kNoGpu)) {
  Model model = tales_on_gpu();
  MESSAGE(model.device().description(), ": largest difference of a logit ",
          difference_from_transformers(model, kLongest, kTolerance));
}

TEST_CASE("on a GPU the matrices come back as on a CPU, and others take their place" *
          doctest::skip(kNoGpu)) {
  const std::vector<int> text{321, 11, 5};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Model model = tales_on_gpu(dtype, kWithoutReference);
    std::vector<WeightMatrix> want;
    for_each_matrix(Model::load(kSource / kWithoutReference, make_cpu_device(1), dtype),
                    [&](const WeightMatrix& matrix) { want.push_back(matrix); });
    std::size_t number = 0;
    const std::vector<float> before = copy(model.next_logits(text));
    Model same = with_matrices(model, [&](const WeightMatrix& matrix) {
      CAPTURE(matrix.name);
      REQUIRE(number < want.size());
      CHECK(matrix.name == want[number].name);
      CHECK(matrix.inputs == want[number].inputs);
      CHECK((matrix.values == want[number].values));
      ++number;
      return matrix.values;
    });
    CHECK(number == want.size());
    CHECK(copy(same.next_logits(text)) == before);
    Model without = with_matrices(
        model, [](const WeightMatrix& matrix) { return std::vector<float>(matrix.values.size()); });
    CHECK(copy(without.next_logits(text)) == std::vector<float>(before.size()));
  }
}

TEST_CASE("on a GPU 16-bit weights change the logits no more than they may" * doctest::skip(kNoGpu)) {
  const auto check = [](DType dtype, double tolerance) {
    Model model = tales_on_gpu(dtype);
    MESSAGE(to_string(dtype), ": largest difference of a logit ",
            difference_from_transformers(model, kLongestOf16Bits, tolerance));
  };
  check(DType::kFloat16, kFloat16Tolerance);
  check(DType::kBFloat16, kBFloat16Tolerance);
}

TEST_CASE("on a GPU a cache may have 16, 8 or 4 bits beside weights of 32, and gives the CPU's logits" *
          doctest::skip(kNoGpu)) {
  const std::vector<int> text{321, 11, 5, 400, 77};
  const LeastVectors vectors;
  Model on_gpu = tales_on_gpu(DType::kFloat32, kWithoutReference),
        on_cpu = Model::load(kSource / kWithoutReference, make_cpu_device(2));
  for (const DType dtype : cache_dtypes()) {
    const auto logits = [&](Model& model) {
      model.use_cache_dtype(dtype);
      StaticKvCache cache(model);
      model.next_logits(std::span(text).first(4), cache);
      return copy(model.next_logits(std::span(text).last(1), cache));
    };
    const std::vector<float> want = logits(on_cpu);
    INFO(to_string(dtype));
    CHECK(difference("logits", logits(on_gpu), want, want.size(),
                     dtype == DType::kFloat32 ? kTolerance : kBFloat16Tolerance) == "");
  }
}

/// tales-6m in float32 on the CPU, with the weights that it has in that type.
Model tales_with_weights_of(DType dtype) {
  const std::filesystem::path folder = kSource / "models/tales-6m";
  std::map<std::string, std::vector<float>> weights;
  for_each_matrix(Model::load(folder, make_cpu_device(2), dtype),
                  [&](const WeightMatrix& matrix) { weights[matrix.name] = matrix.values; });
  return with_matrices(Model::load(folder, make_cpu_device(2), DType::kFloat32),
                       [&](const WeightMatrix& matrix) { return weights.at(matrix.name); });
}

/// Checks that the logits are those of the rounded weights, and nearly those of the CPU.
void check_few_bits(DType dtype) {
  Model model = tales_on_gpu(dtype);
  Model exact = tales_with_weights_of(dtype);
  Model on_cpu = Model::load(kSource / "models/tales-6m", make_cpu_device(2), dtype);
  CHECK(model.kv_dtype() == DType::kBFloat16);
  CHECK(model.weight_bytes() == on_cpu.weight_bytes());
  std::vector<int> text;
  for (int i = 0; i < 40; ++i) text.push_back((37 * i + 5) % 4096);
  // Up to eight tokens compute in float32, and more with operands in bfloat16.
  for (const std::size_t length : {1u, 8u, 9u, 40u}) {
    const std::span<const int> tokens = std::span(text).first(length);
    const std::vector<float> got = copy(model.next_logits(tokens)), want = copy(exact.next_logits(tokens)),
                             cpu = copy(on_cpu.next_logits(tokens));
    CAPTURE(length);
    CHECK(difference("logits", got, want, got.size(), length <= 8 ? kTolerance : kBFloat16Tolerance) == "");
    CHECK(difference("logits", got, cpu, got.size(), kFewBitsTolerance) == "");
    MESSAGE(to_string(dtype), ", ", length, " tokens: largest difference of a logit ",
            largest_difference<float>(got, want).largest, ", from the CPU's ",
            largest_difference<float>(got, cpu).largest);
  }
}

TEST_CASE("on a GPU int8 and int4 give the logits of their weights, and nearly those of the CPU" *
          doctest::skip(kNoGpu)) {
  check_few_bits(DType::kInt8);
  check_few_bits(DType::kInt4);
}

/// Checks it for weights of that type.
void check_batch(DType dtype, double tolerance) {
  Model model = tales_on_gpu(dtype, kWithoutReference);
  const std::vector<std::vector<int>> texts = {
      {1, 2, 3}, {500}, {7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}};
  const std::vector<std::span<const int>> batch(texts.begin(), texts.end());
  const std::vector<float> together = copy(model.next_logits(batch));
  const std::size_t vocab_size = together.size() / texts.size();
  for (std::size_t s = 0; s < texts.size(); ++s) {
    const std::vector<float> got = copy(std::span(together).subspan(s * vocab_size, vocab_size));
    CAPTURE(to_string(dtype));
    CHECK(difference("logits", got, copy(model.next_logits(texts[s])), vocab_size, tolerance) == "");
  }
}

TEST_CASE("on a GPU a batch gives each sequence the same as alone" * doctest::skip(kNoGpu)) {
  check_batch(DType::kFloat32, kTolerance);
  check_batch(DType::kInt8, kBFloat16Tolerance);
  check_batch(DType::kInt4, kBFloat16Tolerance);
}

/// Checks it for weights of that type.
void check_cache(DType dtype, double tolerance) {
  Model model = tales_on_gpu(dtype, kWithoutReference);
  const std::vector<int> text = {1, 2, 3, 500, 7, 8, 9, 10, 11};
  std::vector<std::vector<float>> want;
  for (std::size_t length = 1; length <= text.size(); ++length) {
    want.push_back(copy(model.next_logits(std::span(text).first(length))));
  }
  // The second cache is created after the first one is destroyed, and may reuse its memory.
  for (int time = 0; time < 2; ++time) {
    StaticKvCache cache(model);
    for (std::size_t i = 0; i < text.size(); ++i) {
      const std::vector<float> got = copy(model.next_logits(std::span(text).subspan(i, 1), cache));
      CAPTURE(to_string(dtype));
      CAPTURE(i);
      CHECK(difference("logits", got, want[i], got.size(), tolerance) == "");
    }
  }
}

TEST_CASE("on a GPU decoding with a cache gives the same as without" * doctest::skip(kNoGpu)) {
  check_cache(DType::kFloat32, kTolerance);
  check_cache(DType::kInt8, kBFloat16Tolerance);
  check_cache(DType::kInt4, kBFloat16Tolerance);
}

// The race check sees accesses that nothing orders; on a GPU the bits tell whether a kernel really read too
// early.
TEST_CASE("on a GPU kernels that overlap compute the bits of kernels that wait for each other" *
          doctest::skip(kNoGpu)) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt8}) {
    CAPTURE(to_string(dtype));
    Model overlapping = Model::load(kSource / kWithoutReference, make_cuda_device(true), dtype),
          waiting = Model::load(kSource / kWithoutReference, make_cuda_device(false), dtype);
    int different = 0;
    for (int text = 0, passes = 0; passes < kOverlappingPasses; ++text) {
      StaticKvCache cache(overlapping), cache2(waiting);
      std::vector<int> tokens;
      for (int i = 0; i < 1 + 7 * text % 40; ++i) tokens.push_back((37 * i + text) % 4096);
      for (int i = 0; i < 60 && passes < kOverlappingPasses; ++i, ++passes) {
        const std::vector<float> got = copy(overlapping.next_logits(tokens, cache));
        different += got != copy(waiting.next_logits(tokens, cache2));
        tokens = {argmax(got)};
      }
    }
    CHECK(different == 0);
  }
}

}  // namespace
}  // namespace staircase
