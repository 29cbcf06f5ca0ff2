#include <doctest/doctest.h>

#include <cmath>
#include <numbers>

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

/// A pair of speed s turns 8 s times within the context.
Llama3Scaling example() {
  return {.factor = 8, .low = 1, .high = 4, .context = 16 * std::numbers::pi};
}

TEST_CASE("a pair that turns often within the original training context keeps its speed") {
  CHECK(scaled(1, example()) == doctest::Approx(1));      // 8 turns
  CHECK(scaled(0.5, example()) == doctest::Approx(0.5));  // 4 turns
}

TEST_CASE("a pair that turns less than once is slowed by the factor") {
  CHECK(scaled(0.125, example()) == doctest::Approx(0.015625));  // 1 turn
  CHECK(scaled(0.001, example()) == doctest::Approx(0.000125));  // a hundredth of one
}

TEST_CASE("between the two the speed changes smoothly") {
  // 2 turns are a third of the way from 1 to 4: a third of the speed, and two thirds of an eighth of it.
  CHECK(scaled(0.25, example()) == doctest::Approx(0.25 / 3 + 0.25 * 2 / 3 / 8));
  // 3.2 turns are eleven fifteenths of it.
  CHECK(scaled(0.4, example()) == doctest::Approx(0.4 * 11 / 15 + 0.4 * 4 / 15 / 8));
  for (double speed = 0.1; speed < 0.6; speed += 0.01) {
    CHECK(scaled(speed + 0.01, example()) > scaled(speed, example()));
    CHECK(scaled(speed + 0.01, example()) - scaled(speed, example()) < 0.05);
  }
}

TEST_CASE("in Llama 3.1 the first 29 of 64 pairs keep their speed, and the last 29 turn at an eighth of it") {
  const Llama3Scaling llama{.factor = 8, .low = 1, .high = 4, .context = 8192};
  int kept = 0, slowed = 0;
  for (int i = 0; i < 64; ++i) {
    const double speed = std::pow(500000.0, -i / 64.0), share = scaled(speed, llama) / speed;
    kept += share > 0.9999;
    slowed += share < 0.1251;
    CHECK(share > 0.1249);
    CHECK(share < 1.0001);
  }
  CHECK(kept == 29);
  CHECK(slowed == 29);
}

TEST_CASE("without scaling each pair keeps its speed") {
  for (const double speed : {1.0, 0.01, 1e-6}) CHECK(scaled(speed, {}) == doctest::Approx(speed));
}

TEST_CASE("at eight times the position, a slowed pair has the angle that it had before") {
  const Vector plain = rotate({1, 2, 0, 0}, 40, 4, 4, 1e6, {});  // the speeds are 1 and 0.001
  const Vector far = rotate({1, 2, 0, 0}, 320, 4, 4, 1e6, example());
  CHECK(far[0] == doctest::Approx(std::cos(320.0)).epsilon(1e-4));
  CHECK(far[2] == doctest::Approx(std::sin(320.0)).epsilon(1e-4));
  CHECK(far[1] == doctest::Approx(plain[1]));
  CHECK(far[3] == doctest::Approx(plain[3]));
}

TEST_CASE("the logits of a model as Llama 3.1 are those that transformers computes") {
  PlainModel plain(reference_model("llama-3"));
  CHECK(difference_from_reference("llama-3", [&](const auto& text) { return plain.logits(text); }) < 1e-5);
}

TEST_CASE("the same holds for models without scaling") {
  for (const std::string family : {"smollm2", "llama-2"}) {
    CAPTURE(family);
    PlainModel plain(reference_model(family));
    CHECK(difference_from_reference(family, [&](const auto& text) { return plain.logits(text); }) < 1e-5);
  }
}

TEST_CASE("each head rotates alike, and features beyond the rotated part stay the same") {
  const Vector x = rotate({1, 0, 8, 9, 1, 0, 8, 9}, 5, 4, 2, 10000, {});
  CHECK(x[0] == doctest::Approx(std::cos(5.0)));
  CHECK(x[1] == doctest::Approx(std::sin(5.0)));
  CHECK(Vector(x.begin() + 2, x.begin() + 4) == Vector{8, 9});
  CHECK(Vector(x.begin() + 4, x.end()) == Vector(x.begin(), x.begin() + 4));
}

TEST_CASE("the speeds of the pairs depend on the size of the rotated part alone, however large the head is") {
  const Vector x =
      rotate({0, 1, 0, 0, 8, 9, 8, 9}, 5, 8, 4, 10000, {});  // 10000^(-2 / 4) radians per position
  CHECK(x[1] == doctest::Approx(std::cos(0.05)));
  CHECK(x[3] == doctest::Approx(std::sin(0.05)));
  CHECK(Vector(x.begin() + 4, x.end()) == Vector{8, 9, 8, 9});
}

TEST_CASE("the logits after a text are the engine's, far beyond the original context of 64 positions") {
  for (const std::string& path : {reference_folder("llama-3"), find_model("tales-gqa-1m").string()}) {
    CAPTURE(path);
    Model model = Model::load(path, make_cpu_device(2));
    PlainModel plain(model);
    CHECK(difference_from_engine(model, texts(), [&](const auto& text) { return plain.logits(text); }) <
          1e-4);
  }
}

TEST_CASE("another family is refused by its name") {
  const Model model = reference_model("qwen3");
  CHECK(error_message([&] { PlainModel{model}; }) ==
        "this step runs llama, but the model's family is qwen3, which 86-qk-norm adds");
}

TEST_CASE(
    "--plain-loops prints how far the logits are, how much slower the loops are, and where their time goes") {
  int shares = 0;
  // Other programs may disturb a run, so it is repeated.
  for (int run = 0; run < 3 && shares <= 80; ++run) {
    const ProgramRun result =
        run_program(STAIRCASE_STEP_PROGRAM, "--model " + reference_folder("llama-3") +
                                                " --prompt 'A fox' --plain-loops --max-new-tokens 1");
    REQUIRE(result.status == 0);
    CHECK(contains(result.err, "4096 logits differ by "));
    CHECK(contains(result.err, " times as fast\n"));
    shares = 0;
    for (const std::string part : {"attention", "MLP", "output layer"}) {
      CAPTURE(part);
      const std::size_t place = result.err.find(" %  " + part);
      REQUIRE(place != std::string::npos);
      shares += std::stoi(result.err.substr(place - 4, 4));
    }
  }
  CHECK(shares > 80);
  CHECK(shares <= 102);
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--prompt 'A fox' --max-new-tokens 1").err.find("logits") ==
        std::string::npos);
}

}  // namespace
}  // namespace staircase
