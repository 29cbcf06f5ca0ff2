// The whole model on the emulated GPU: the logits are those of transformers and of the CPU.
#include "common/gpt2.h"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "common/safetensors.h"
#include "tests/compare.h"

namespace staircase {
namespace {

const std::filesystem::path kSource = STAIRCASE_SOURCE_TREE;

TEST_CASE("on the emulated GPU the logits are those of transformers") {
  Gpt2 model = Gpt2::load(kSource / "models/tales-6m", make_cuda_device());
  std::ifstream file(kSource / "tests/reference/logits.json");
  const nlohmann::json cases = nlohmann::json::parse(file).at("cases");
  const Safetensors tensors(kSource / "tests/reference/logits.safetensors");
  int lengths = 0;
  for (const auto& reference : cases) {
    const auto tokens = reference.at("tokens").get<std::vector<int>>();
    if (tokens.size() > 70) continue;
    const std::string name = reference.at("name").get<std::string>() + ".last_logits";
    const StoredTensor* const stored = tensors.find(name);
    REQUIRE(stored != nullptr);
    std::vector<float> want(stored->bytes.size() / sizeof(float));
    std::memcpy(want.data(), stored->bytes.data(), stored->bytes.size());
    const std::span<const float> logits = model.next_logits(tokens);
    const std::vector<float> got(logits.begin(), logits.end());
    CHECK(difference(name, got, want, want.size(), 1e-3) == "");
    CHECK(argmax(got) == reference.at("argmax").get<int>());
    ++lengths;
  }
  CHECK(lengths >= 3);
}

TEST_CASE("on the emulated GPU 16-bit weights change the logits no more than they may") {
  std::ifstream file(kSource / "tests/reference/logits.json");
  const nlohmann::json cases = nlohmann::json::parse(file).at("cases");
  const Safetensors tensors(kSource / "tests/reference/logits.safetensors");
  const auto check = [&](DType dtype, double tolerance) {
    Gpt2 model = Gpt2::load(kSource / "models/tales-6m", make_cuda_device(), dtype);
    double largest = 0.0;
    for (const auto& reference : cases) {
      const auto tokens = reference.at("tokens").get<std::vector<int>>();
      if (tokens.size() > 40) continue;  // shorter than nine tokens and longer: both kinds of product
      const std::string name = reference.at("name").get<std::string>() + ".last_logits";
      const StoredTensor* const stored = tensors.find(name);
      REQUIRE(stored != nullptr);
      std::vector<float> want(stored->bytes.size() / sizeof(float));
      std::memcpy(want.data(), stored->bytes.data(), stored->bytes.size());
      const std::span<const float> logits = model.next_logits(tokens);
      const std::vector<float> got(logits.begin(), logits.end());
      CHECK(difference(name, got, want, want.size(), tolerance) == "");
      largest = std::max(largest, largest_difference<float>(got, want).largest);
    }
    MESSAGE(to_string(dtype), ": largest difference of a logit ", largest);
  };
  check(DType::kFloat16, 2e-2);
  check(DType::kBFloat16, 1e-1);
}

TEST_CASE("on the emulated GPU a batch gives each sequence what it gets alone") {
  Gpt2 model = Gpt2::load(kSource / "models/tales-6m", make_cuda_device());
  const std::vector<std::vector<int>> texts = {
      {1, 2, 3}, {500}, {7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}};
  const std::vector<std::span<const int>> batch(texts.begin(), texts.end());
  const std::span<const float> together = model.next_logits(batch);
  const std::vector<float> rows(together.begin(), together.end());
  const std::size_t vocab_size = rows.size() / texts.size();
  for (std::size_t s = 0; s < texts.size(); ++s) {
    const std::span<const float> alone = model.next_logits(texts[s]);
    const std::vector<float> got(rows.begin() + static_cast<std::ptrdiff_t>(s * vocab_size),
                                 rows.begin() + static_cast<std::ptrdiff_t>((s + 1) * vocab_size));
    CHECK(difference("logits", got, std::vector<float>(alone.begin(), alone.end()), vocab_size, 1e-4) == "");
  }
}

}  // namespace
}  // namespace staircase
