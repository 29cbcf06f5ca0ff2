#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "plain_gpt2.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"

namespace staircase {
namespace {

const std::string kFamilies = STAIRCASE_SOURCE_TREE "/tests/reference/families/";

Model family(const std::string& name) {
  return Model::load(kFamilies + name, make_cpu_device(2));
}

/// Whether the logits are nearly the wanted ones, by the largest of these.
bool near(const Vector& logits, std::span<const float> want) {
  float largest = 0.0f, off = 0.0f;
  for (std::size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(want[i]));
    off = std::max(off, std::abs(logits.at(i) - want[i]));
  }
  return logits.size() == want.size() && off < 1e-4f * largest;
}

/// Those of some tokens, as the reference has them.
Vector at_places(const Vector& logits, const nlohmann::json& places) {
  Vector some;
  for (const nlohmann::json& place : places) some.push_back(logits.at(place.get<std::size_t>()));
  return some;
}

nlohmann::json reference_cases() {
  std::ifstream file(kFamilies + "gpt2/reference.json");
  return nlohmann::json::parse(file)["cases"];
}

TEST_CASE("the logits after a text are those that transformers computes") {
  PlainGpt2 plain(family("gpt2"));
  for (const nlohmann::json& one : reference_cases()) {
    const Vector logits = plain.logits(one["ids"].get<std::vector<int>>());
    CHECK(near(at_places(logits, one["places"]), one["logits"].get<Vector>()));
  }
}

TEST_CASE("the logits after a text are the engine's") {
  PlainGpt2 plain(tales());
  for (const std::vector<int>& tokens : {std::vector{321}, {321, 11, 5, 900, 17}, std::vector<int>(40, 7)})
    CHECK(near(plain.logits(tokens), tales().next_logits(tokens)));
}

TEST_CASE("attention is a mean of the values, weighted by how well keys fit the last query, head by head") {
  // Two heads of one feature: queries, keys and values of two tokens.
  const Vectors qkv{{9, 9, 0, 3, 5, 7}, {2, 0, std::log(3.0f) / 2, 1, 9, 1}};
  const Vector attended = attend(qkv, 2);
  CHECK(attended[0] == doctest::Approx(0.25 * 5 + 0.75 * 9));  // weights 1 and 3
  CHECK(attended[1] == doctest::Approx(0.5 * 7 + 0.5 * 1));    // the query of the second head is 0
  CHECK(attend({qkv[0]}, 2) == Vector{5, 7});                  // nothing else to look at
}

TEST_CASE("scores are divided by the root of a head's features") {
  const Vectors qkv{{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1, 4, 4, 4, 4}};
  CHECK(attend(qkv, 1)[0] == doctest::Approx((1 + 4 * std::exp(2.0)) / (1 + std::exp(2.0))));
}

TEST_CASE("no score is too large") {
  CHECK(attend({{0, 100, 1}, {1000, 200, 2}}, 1) == Vector{2});
}

TEST_CASE("another family is refused by its name") {
  const Model model = family("llama-3");
  CHECK(error_message([&] { PlainGpt2{model}; }) ==
        "this needs the weights of a gpt2, and the model is a llama");
}

TEST_CASE(
    "--plain-loops says how far the logits are, how much slower the loops are, and where their time goes") {
  const ProgramRun result =
      run_program(STAIRCASE_STEP_PROGRAM, "--prompt 'A fox' --plain-loops --max-new-tokens 1");
  REQUIRE(result.status == 0);
  CHECK(result.err.find("4096 logits differ by ") != std::string::npos);
  CHECK(result.err.find(" times as fast\n") != std::string::npos);
  int shares = 0;
  for (const std::string part : {"attention", "MLP", "output layer"}) {
    CAPTURE(part);
    const std::size_t place = result.err.find(" %  " + part);
    REQUIRE(place != std::string::npos);
    shares += std::stoi(result.err.substr(place - 4, 4));
  }
  CHECK(shares > 80);
  CHECK(shares <= 102);
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--prompt 'A fox' --max-new-tokens 1").err.find("logits") ==
        std::string::npos);
}

}  // namespace
}  // namespace staircase
