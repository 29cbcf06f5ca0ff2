#include <doctest/doctest.h>

#include <map>
#include <numeric>

#include "forward_pass.h"
#include "plain_model.h"
#include "static_kv_cache.h"
#include "tests/error_message.h"
#include "tests/reference_logits.h"
#include "tests/run_program.h"
#include "tests/step.h"

namespace staircase {
namespace {

const std::vector<std::string> kRelatives{"llama-2", "llama-3", "smollm2", "olmo", "qwen2", "qwen3"};

Model with_own_pass(const std::string& family, DType dtype = DType::kFloat32) {
  Model model = Model::load(reference_folder(family), make_cpu_device(2), dtype);
  model.run_with([&weights = llama_weights(model)](Pass& pass) { forward(weights, pass); });
  return model;
}

std::vector<float> copied(std::span<const float> logits) {
  return {logits.begin(), logits.end()};
}

TEST_CASE("the residual stream after each stage is that of transformers") {
  const std::vector<std::string> stages{"embeddings", "block.0", "block.1", "ln_f"};
  for (const std::string& family : kRelatives) {
    CAPTURE(family);
    Model model = with_own_pass(family);
    for (const nlohmann::json& one : reference_cases(family)) {
      std::map<std::string, double> lengths;  // of the last token's row
      model.on_stage([&](std::string_view stage, std::span<const float> x) {
        const auto last = x.last(static_cast<std::size_t>(model.config().n_embd));
        lengths[std::string(stage)] =
            std::sqrt(std::inner_product(last.begin(), last.end(), last.begin(), 0.0));
      });
      model.next_logits(one["ids"].get<std::vector<int>>());
      for (std::size_t i = 0; i < stages.size(); ++i) {
        CAPTURE(stages[i]);
        REQUIRE_MESSAGE(lengths.contains(stages[i]), "pass.show was never called with this name");
        CHECK(lengths[stages[i]] == doctest::Approx(one["block_norms"][i].get<double>()).epsilon(1e-4));
      }
    }
  }
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

TEST_CASE("the logits after a text are those that transformers computes, for all relatives of Llama") {
  for (const std::string& family : kRelatives) {
    CAPTURE(family);
    Model model = with_own_pass(family);
    CHECK(difference_from_reference(
              family, [&](const auto& text) { return copied(model.next_logits(text)); }) < 1e-4);
  }
}

TEST_CASE(
    "in every type the logits are the engine's to the bit, in a batch and token by token with a cache") {
  const std::vector<int> longer{321, 11, 5, 900, 17, 2, 40}, shorter{8, 1500};
  const std::vector<std::span<const int>> batch{longer, shorter};
  for (const std::string& family : kRelatives) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt8}) {
      CAPTURE(family);
      Model own = with_own_pass(family, dtype);
      Model engine = Model::load(reference_folder(family), make_cpu_device(2), dtype);
      CHECK(copied(own.next_logits(batch)) == copied(engine.next_logits(batch)));
      StaticKvCache own_cache(own), engine_cache(engine);
      for (const int token : longer) {
        CHECK(copied(own.next_logits({&token, 1}, own_cache)) ==
              copied(engine.next_logits({&token, 1}, engine_cache)));
      }
    }
  }
}

TEST_CASE("a family with other blocks is refused by its name") {
  CHECK(error_message([] { llama_weights(reference_model("pythia")); }) ==
        "this pass computes Llama and its relatives, but the model is a gpt_neox");
}

TEST_CASE("--own-pass changes no text, and the plain loops are compared with it") {
  const std::string options = "--model tales-qwen-1m --prompt 'A fox' --max-new-tokens 12";
  const ProgramRun engine = run_program(STAIRCASE_STEP_PROGRAM, options);
  const ProgramRun own = run_program(STAIRCASE_STEP_PROGRAM, options + " --own-pass --plain-loops");
  REQUIRE(own.status == 0);
  CHECK(own.out == engine.out);
  CHECK(contains(own.err, "4096 logits differ by "));
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--prompt 'A fox' --own-pass")
            .err.find("this pass computes Llama and its relatives, but the model is a gpt2") !=
        std::string::npos);
}

}  // namespace
}  // namespace staircase
