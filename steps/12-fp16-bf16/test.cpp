#include <doctest/doctest.h>

#include <cmath>

#include "generate.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

/// The largest distance between two vectors of logits.
float distance(std::span<const float> a, std::span<const float> b) {
  float largest = 0.0f;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

}  // namespace

TEST_CASE("16-bit weights take half the memory") {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    const double share =
        static_cast<double>(tales_in(dtype).weight_bytes()) / static_cast<double>(tales().weight_bytes());
    CHECK(share > 0.5);  // biases, norms and positions stay in float32
    CHECK(share < 0.53);
  }
}

TEST_CASE("--dtype is what the program keeps its weights in") {
  const std::string arguments = "--max-new-tokens 1 --json --dtype ";
  for (const std::string dtype : {"float32", "float16", "bfloat16"}) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, arguments + dtype);
    REQUIRE(run.status == 0);
    CHECK(nlohmann::json::parse(run.out)["stats"]["weight_bytes"] ==
          tales_in(weight_dtype(dtype)).weight_bytes());
  }
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, arguments + "int8").status == 2);
}

TEST_CASE("float16 changes no logit of a model that is stored in float16") {
  Gpt2 half = tales_in(DType::kFloat16);
  // Only a GPU rounds more than the weights: its tensor cores multiply two factors of one type.
  const float allowed = tests_are_for_gpu() ? 2e-2f : 0.0f;
  for (const auto& run : reference("precision.json")["cases"]) {
    const std::vector<int> prompt = run["prompt_ids"];
    CHECK(distance(half.next_logits(prompt), tales().next_logits(prompt)) <= allowed);
  }
}

TEST_CASE("bfloat16 moves the logits less than Hugging Face's bfloat16 moves them") {
  // Both round what is multiplied; here the sums, the norms and what lies between two products stay in
  // float32.
  Gpt2 brain = tales_in(DType::kBFloat16);
  float moved = 0.0f, moved_there = 0.0f;
  for (const auto& run : reference("bfloat16.json")["cases"]) {
    CAPTURE(run["name"]);
    const std::vector<int> tokens = run["tokens"];
    const float here = distance(brain.next_logits(tokens), tales().next_logits(tokens));
    CHECK(here > 0.0f);
    CHECK(here < 0.1f);
    moved += here;
    moved_there += run["everything"]["max_abs_diff"].get<float>();
  }
  CHECK(moved < 0.8f * moved_there);
}

TEST_CASE("greedy decoding with bfloat16 agrees until the first token that is nearly a tie") {
  Gpt2 brain = tales_in(DType::kBFloat16);
  for (const auto& run : reference("greedy.json")["cases"]) {
    CAPTURE(run["name"]);
    const std::vector<int> prompt = run["prompt_ids"], want = run["ids"];
    std::mt19937 generator;
    const Generation generation =
        generate(brain, prompt, {.max_new_tokens = 64}, generator, [](const Token&) {});
    const std::vector<int> got = behind(prompt.size(), generation.tokens);
    const auto parting = std::mismatch(got.begin(), got.end(), want.begin(), want.end()).first - got.begin();
    // Each of two logits may move by 0.1, see the test above.
    if (parting < std::ssize(want)) CHECK(run["gaps"][static_cast<std::size_t>(parting)].get<double>() < 0.2);
  }
}
