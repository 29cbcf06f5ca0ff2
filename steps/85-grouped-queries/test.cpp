#include <doctest/doctest.h>

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

TEST_CASE("neighbouring query heads share a head of keys and values") {
  // Four query heads of one feature, two key heads: heads 0 and 1 read the first, 2 and 3 the second.
  const Vectors keys{{0, 0}, {std::log(3.0f), 0}}, values{{4, 10}, {8, 30}};
  const Vector attended = attend({1, 0, 1, 5}, keys, values, 4);
  CHECK(attended[0] == doctest::Approx(0.25 * 4 + 0.75 * 8));  // weights 1 and 3
  CHECK(attended[1] == doctest::Approx(6));                    // a query of 0
  CHECK(attended[2] == doctest::Approx(20));                   // the second keys are 0
  CHECK(attended[3] == doctest::Approx(20));
}

TEST_CASE("attention is a mean of the values, weighted by how well keys fit the query, head by head") {
  // Two heads of one feature, and two tokens.
  const Vector query{2, 0};
  const Vectors keys{{0, 3}, {std::log(3.0f) / 2, 1}}, values{{5, 7}, {9, 1}};
  const Vector attended = attend(query, keys, values, 2);
  CHECK(attended[0] == doctest::Approx(0.25 * 5 + 0.75 * 9));    // weights 1 and 3
  CHECK(attended[1] == doctest::Approx(0.5 * 7 + 0.5 * 1));      // the query of the second head is 0
  CHECK(attend(query, {keys[0]}, {values[0]}, 2) == values[0]);  // a single token attends only to itself
}

TEST_CASE("scores are divided by the root of a head's features") {
  const Vectors keys{{0, 0, 0, 0}, {1, 1, 1, 1}}, values{{1, 1, 1, 1}, {4, 4, 4, 4}};
  const Vector attended = attend({1, 1, 1, 1}, keys, values, 1);
  CHECK(attended[0] == doctest::Approx((1 + 4 * std::exp(2.0)) / (1 + std::exp(2.0))));
}

TEST_CASE("no score is too large, and none too small") {
  CHECK(attend({1000}, {{-200}, {-100}}, {{1}, {2}}, 1) == Vector{2});
  CHECK(attend({1000}, {{100}, {200}}, {{1}, {2}}, 1) == Vector{2});
}

TEST_CASE("each head rotates alike, and features beyond the rotated part stay the same") {
  const Vector x = rotate({1, 0, 8, 9, 1, 0, 8, 9}, 5, 4, 2, 10000);
  CHECK(x[0] == doctest::Approx(std::cos(5.0)));
  CHECK(x[1] == doctest::Approx(std::sin(5.0)));
  CHECK(Vector(x.begin() + 2, x.begin() + 4) == Vector{8, 9});
  CHECK(Vector(x.begin() + 4, x.end()) == Vector(x.begin(), x.begin() + 4));
}

TEST_CASE("the speeds of the pairs depend on the size of the rotated part alone, however large the head is") {
  const Vector x = rotate({0, 1, 0, 0, 8, 9, 8, 9}, 5, 8, 4, 10000);  // 10000^(-2 / 4) radians per position
  CHECK(x[1] == doctest::Approx(std::cos(0.05)));
  CHECK(x[3] == doctest::Approx(std::sin(0.05)));
  CHECK(Vector(x.begin() + 4, x.end()) == Vector{8, 9, 8, 9});
}

TEST_CASE("the logits after a text are those that transformers computes") {
  PlainModel groups(reference_model("smollm2"));
  CHECK(difference_from_reference("smollm2", [&](const auto& text) { return groups.logits(text); }) < 1e-4);
  PlainModel single(reference_model("llama-2"));
  CHECK(difference_from_reference("llama-2", [&](const auto& text) { return single.logits(text); }) < 1e-4);
}

TEST_CASE("the logits after a text are the engine's") {
  Model model = Model::load(find_model("tales-gqa-1m"), make_cpu_device(2));
  PlainModel plain(model);
  CHECK(difference_from_engine(model, texts(), [&](const auto& text) { return plain.logits(text); }) < 1e-4);
}

TEST_CASE("scaled positions are refused") {
  const Model model = reference_model("llama-3");
  CHECK(error_message([&] { PlainModel{model}; }) ==
        "this llama has scaled rotary positions, which 89-scaled-rotation adds");
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
    const ProgramRun result = run_program(
        STAIRCASE_STEP_PROGRAM, "--model tales-gqa-1m --prompt 'A fox' --plain-loops --max-new-tokens 1");
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
