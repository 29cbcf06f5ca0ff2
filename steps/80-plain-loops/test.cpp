#include <doctest/doctest.h>

#include "plain_model.h"
#include "tests/error_message.h"
#include "tests/reference_logits.h"
#include "tests/run_program.h"
#include "tests/step.h"

namespace staircase {
namespace {

TEST_CASE("the logits after one token are those that transformers computes") {
  const PlainModel plain(reference_model("gpt2"));
  for (const nlohmann::json& one : reference_cases("gpt2")) {
    const Vector logits = plain.logits(one["ids"][0].get<int>());
    CHECK(difference(at(logits, one["places"]), one["first_token_logits"].get<Vector>()) < 1e-4);
  }
}

TEST_CASE("the logits after any one token are the engine's") {
  const PlainModel plain(tales());
  for (const int token : {0, 1, 321, 900, 4095})
    CHECK(difference(plain.logits(token), tales().next_logits(std::vector{token})) < 1e-4);
}

TEST_CASE("a product connects each input to each output") {
  CHECK(linear({1, 2}, {1, 10, 100, 3, 30, 300}, {0.5f, 0, -1}) == Vector{7.5f, 70, 699});
}

TEST_CASE("a norm has mean 0 and variance 1 before it is scaled and shifted") {
  const Vector y = layer_norm({1, 2, 3, 6}, {1, 1, 1, 2}, {0, 0, 0, 10}, 0.0f);  // mean 3, variance 3.5
  CHECK(y[0] == doctest::Approx(-2 / std::sqrt(3.5)));
  CHECK(y[2] == doctest::Approx(0));
  CHECK(y[3] == doctest::Approx(10 + 2 * 3 / std::sqrt(3.5)));
  CHECK(layer_norm({5, 5}, {1, 1}, {0, 0}, 1e-5f) == Vector{0, 0});
  CHECK(layer_norm({-1, 1}, {1, 1}, {0, 0}, 3.0f)[1] == doctest::Approx(0.5));  // epsilon inside the root
}

TEST_CASE("GELU is nearly x times the normal distribution below x") {
  for (const float x : {-8.0f, -2.0f, -0.5f, 0.0f, 0.3f, 1.0f, 4.0f}) {
    const double exact = x * 0.5 * (1.0 + std::erf(x / std::sqrt(2.0)));
    CHECK(std::abs(gelu(x) - exact) < 1e-3);
  }
}

TEST_CASE("another family is refused by its name") {
  const Model model = reference_model("llama-3");
  CHECK(error_message([&] { PlainModel{model}; }) ==
        "this step runs gpt2, but the model's family is llama, which 84-rms-norm adds");
}

TEST_CASE("--plain-loops prints how far the logits are, and nothing is printed without it") {
  const ProgramRun result =
      run_program(STAIRCASE_STEP_PROGRAM, "--prompt 'A fox' --plain-loops --max-new-tokens 1");
  REQUIRE(result.status == 0);
  CHECK(contains(result.err, "4096 logits differ by "));
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--prompt 'A fox' --max-new-tokens 1").err.find("logits") ==
        std::string::npos);
}

}  // namespace
}  // namespace staircase
