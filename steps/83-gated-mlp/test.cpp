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

TEST_CASE("a product connects each input to each output") {
  CHECK(linear({1, 2}, {1, 10, 100, 3, 30, 300}) == Vector{7, 70, 700});
}

TEST_CASE("SiLU is x times the logistic function") {
  for (const float x : {-8.0f, -2.0f, -0.5f, 0.0f, 0.3f, 1.0f, 4.0f})
    CHECK(silu(x) ==
          doctest::Approx(x * (0.5 + 0.5 * std::tanh(x / 2.0))));  // the same function in another form
  CHECK(silu(-200.0f) == 0.0f);
  CHECK(silu(200.0f) == 200.0f);  // exp(200) is more than a float holds
}

TEST_CASE("a norm has mean 0 and variance 1") {
  const Vector y = layer_norm({1, 2, 3, 6}, 0.0f);  // mean 3, variance 3.5
  CHECK(y[0] == doctest::Approx(-2 / std::sqrt(3.5)));
  CHECK(y[3] == doctest::Approx(3 / std::sqrt(3.5)));
  CHECK(layer_norm({-1, 1}, 3.0f)[1] == doctest::Approx(0.5));  // epsilon inside the root
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
  PlainModel plain(reference_model("olmo"));
  CHECK(difference_from_reference("olmo", [&](const auto& text) { return plain.logits(text); }) < 1e-4);
}

TEST_CASE("the logits after a text are the engine's") {
  Model model = Model::load(find_model("tales-olmo-1m"), make_cpu_device(2));
  PlainModel plain(model);
  CHECK(difference_from_engine(model, texts(), [&](const auto& text) { return plain.logits(text); }) < 1e-4);
}

TEST_CASE("another family is refused by its name") {
  const Model model = reference_model("neox-sequential");
  CHECK(error_message([&] { PlainModel{model}; }) ==
        "this step runs olmo, but the model's family is gpt_neox, which 82-rotary-positions adds");
}

TEST_CASE("a model whose heads share keys is refused") {
  const TemporaryFolder folder;
  std::string config = read_text_file(reference_folder("smollm2") + "/config.json");
  config.replace(config.find("\"llama\""), 7, "\"olmo\"");
  folder.write("config.json", config);
  for (const char* const name : {"/model.safetensors", "/tokenizer.json"})
    std::filesystem::copy(reference_folder("smollm2") + name, folder.path());
  const Model model = Model::load(folder.path(), make_cpu_device(2));
  CHECK(error_message([&] { PlainModel{model}; }) ==
        "9 query heads share 3 key heads, but in this step each has its own");
}

TEST_CASE(
    "--plain-loops prints how far the logits are, how much slower the loops are, and where their time goes") {
  int shares = 0;
  // Other programs may disturb a run, so it is repeated.
  for (int run = 0; run < 3 && shares <= 80; ++run) {
    const ProgramRun result = run_program(
        STAIRCASE_STEP_PROGRAM, "--model tales-olmo-1m --prompt 'A fox' --plain-loops --max-new-tokens 1");
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
