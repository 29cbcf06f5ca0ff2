#include <doctest/doctest.h>

#include <cmath>

#include "plain_model.h"
#include "tests/error_message.h"
#include "tests/reference_logits.h"
#include "tests/run_program.h"
#include "tests/step.h"

namespace staircase {
namespace {

/// Short texts, and one of 200 tokens: positions far beyond those of the examples.
std::vector<std::vector<int>> texts() {
  std::vector<int> tokens;
  for (int i = 0; i < 200; ++i) tokens.push_back((i * 1237 + 31) % 4000);
  return {{321}, {321, 11, 5, 900, 17}, tokens};
}

std::vector<int> experts_of(const Shares& shares) {
  std::vector<int> experts;
  for (const auto& one : shares) experts.push_back(one.first);
  return experts;
}

}  // namespace

TEST_CASE("the largest scores choose the experts, and the first of equal scores") {
  CHECK(experts_of(route({1, 4, 2, 3}, 2)) == std::vector<int>{1, 3});
  CHECK(experts_of(route({1, 2, 2, 2}, 2)) == std::vector<int>{1, 2});
  CHECK(experts_of(route({-9, -3, -5, -700}, 1)) == std::vector<int>{1});
  CHECK(experts_of(route({0, 0, 0, 0}, 4)) == std::vector<int>{0, 1, 2, 3});
}

TEST_CASE("the shares of the chosen experts sum to 1, and the others' scores do not change them") {
  const float log_3 = std::log(3.0f);
  for (const float others : {-5.0f, -1.0f, 0.0f}) {
    const Shares shares = route({others, log_3, others, 0.5f * log_3, others}, 2);
    CHECK(shares.at(1) == doctest::Approx(std::sqrt(3.0) / (1 + std::sqrt(3.0))));  // e^(log 3 / 2) = √3
    CHECK(shares.at(3) == doctest::Approx(1 / (1 + std::sqrt(3.0))));
  }
  CHECK(route({7, 7, 7, 7}, 2).at(0) == doctest::Approx(0.5));
  CHECK(route({3, 8, 1}, 1).at(1) == doctest::Approx(1));
}

TEST_CASE("the logits after a text are those that transformers computes") {
  PlainModel plain(reference_model("qwen3-moe"));  // its second block has one MLP
  CHECK(difference_from_reference("qwen3-moe", [&](const auto& text) { return plain.logits(text); }) < 1e-4);
}

TEST_CASE("the logits after a text are the engine's") {
  Model model = Model::load(find_model("tales-moe-1m"), make_cpu_device(2));
  PlainModel plain(model);
  CHECK(difference_from_engine(model, texts(), [&](const auto& text) { return plain.logits(text); }) < 1e-4);
}

TEST_CASE("another family is refused by its name") {
  const Model model = reference_model("qwen3");
  CHECK(error_message([&] { PlainModel{model}; }) ==
        "this step runs qwen3_moe, but the model's family is qwen3, which 86-qk-norm adds");
}

TEST_CASE("--plain-loops prints how far the logits are, and where the time goes") {
  const ProgramRun result = run_program(
      STAIRCASE_STEP_PROGRAM, "--model tales-moe-1m --prompt 'A fox' --plain-loops --max-new-tokens 1");
  REQUIRE(result.status == 0);
  CHECK(contains(result.err, "4096 logits differ by "));
  CHECK(contains(result.err, " times as fast\n"));
  for (const std::string part : {"attention", "MLP", "output layer"})
    CHECK(contains(result.err, " %  " + part + "\n"));
}

}  // namespace staircase
