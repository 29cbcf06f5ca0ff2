#include <doctest/doctest.h>

#include "common/base/file.h"
#include "plain_model.h"
#include "tests/error_message.h"
#include "tests/reference_logits.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/temporary_folder.h"

namespace staircase {
namespace {

/// Short texts, and one of 200 tokens: positions far beyond those of the examples.
std::vector<std::vector<int>> texts() {
  std::vector<int> tokens;
  for (int i = 0; i < 200; ++i) tokens.push_back((i * 1237 + 31) % 4000);
  return {{321}, {321, 11, 5, 900, 17}, tokens};
}

/// The product of a query and a key, each at its position, as attention computes it.
double score(int query_position, int key_position) {
  const Vector query = rotate({0.3f, -1, 2, 0.5f}, query_position, 4, 4, 10000);
  const Vector key = rotate({1, 0.7f, -0.2f, 3}, key_position, 4, 4, 10000);
  return std::inner_product(query.begin(), query.end(), key.begin(), 0.0);
}

TEST_CASE("a pair rotates by its angle once for each position") {
  const Vector x = rotate({1, 0}, 2, 2, 2, 10000);  // one pair rotates by 1 radian per position
  CHECK(x[0] == doctest::Approx(std::cos(2.0)));
  CHECK(x[1] == doctest::Approx(std::sin(2.0)));
  CHECK(rotate({3, 4, 5, 6}, 0, 4, 4, 10000) == Vector{3, 4, 5, 6});
}

TEST_CASE("later pairs rotate more slowly, and a pair is a feature of the first half and one of the second") {
  const Vector x = rotate({1, 2, 0, 0}, 3, 4, 4, 100);  // theta^(-2 / 4) = 0.1
  CHECK(x[0] == doctest::Approx(std::cos(3.0)));
  CHECK(x[1] == doctest::Approx(2 * std::cos(0.3)));
  CHECK(x[2] == doctest::Approx(std::sin(3.0)));
  CHECK(x[3] == doctest::Approx(2 * std::sin(0.3)));
}

TEST_CASE("only the difference of two positions counts") {
  for (const int shift : {1, 20, 500})
    CHECK(score(7 + shift, 4 + shift) == doctest::Approx(score(7, 4)).epsilon(1e-4));
  CHECK(std::abs(score(7, 4) - score(4, 7)) > 0.1);
  CHECK(std::abs(score(7, 4) - score(8, 4)) > 0.1);
}

TEST_CASE("far from the start the angles are as exact as at the start") {
  const Vector x = rotate({1, 1, 1, 0, 0, 0}, 100'000, 6, 6, 10000);
  for (int i = 0; i < 3; ++i) {
    const double angle = 100'000 * std::pow(10000, -2.0 * i / 6);
    CHECK(std::abs(x[i] - std::cos(angle)) < 1e-6);
    CHECK(std::abs(x[i + 3] - std::sin(angle)) < 1e-6);
  }
}

TEST_CASE("a rotation changes no length") {
  const Vector x = rotate({1, 2, 3, 4}, 77, 4, 4, 10000);
  CHECK(std::inner_product(x.begin(), x.end(), x.begin(), 0.0) == doctest::Approx(30));
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
  PlainModel plain(reference_model("neox-sequential"));
  CHECK(difference_from_reference("neox-sequential", [&](const auto& text) { return plain.logits(text); }) <
        1e-4);
}

TEST_CASE("the logits after a text are the engine's") {
  Model model = Model::load(find_model("tales-neox-1m"), make_cpu_device(2));
  PlainModel plain(model);
  CHECK(difference_from_engine(model, texts(), [&](const auto& text) { return plain.logits(text); }) < 1e-4);
}

TEST_CASE("the same holds where only a part of each head is rotated") {
  const TemporaryFolder folder;
  const std::string whole = reference_folder("neox-sequential");
  std::string config = read_text_file(whole + "/config.json");
  const std::string share = "\"partial_rotary_factor\": ";
  config.replace(config.find(share), share.size() + 3, share + "0.5");
  folder.write("config.json", config);
  for (const char* const name : {"/model.safetensors", "/tokenizer.json"})
    std::filesystem::copy(whole + name, folder.path());
  Model model = Model::load(folder.path(), make_cpu_device(2));
  REQUIRE(model.config().rotary_size == model.config().head_size / 2);
  PlainModel plain(model);
  CHECK(difference_from_engine(model, texts(), [&](const auto& text) { return plain.logits(text); }) < 1e-4);
}

TEST_CASE("another family is refused by its name") {
  const Model model = reference_model("gpt2");
  CHECK(error_message([&] { PlainModel{model}; }) ==
        "this step runs gpt_neox, but the model's family is gpt2, which 81-plain-attention adds");
}

TEST_CASE("blocks whose parts run in parallel are refused") {
  const Model model = reference_model("pythia");
  CHECK(error_message([&] { PlainModel{model}; }) ==
        "this gpt_neox has parallel blocks (use_parallel_residual), which 88-parallel-blocks adds");
}

TEST_CASE(
    "--plain-loops prints how far the logits are, how much slower the loops are, and where their time goes") {
  int shares = 0;
  // Other programs may disturb a run, so it is repeated.
  for (int run = 0; run < 3 && shares <= 80; ++run) {
    const ProgramRun result = run_program(
        STAIRCASE_STEP_PROGRAM, "--model tales-neox-1m --prompt 'A fox' --plain-loops --max-new-tokens 1");
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
