#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "common/measure/adapter_trial.h"
#include "plain_model.h"
#include "tests/captured.h"
#include "tests/error_message.h"
#include "tests/reference_logits.h"
#include "tests/run_program.h"
#include "tests/step.h"

namespace staircase {
namespace {

const std::filesystem::path kAdapters =
    std::filesystem::path(STAIRCASE_SOURCE_TREE) / "tests/reference/adapters";

TEST_CASE("y changes by the scale times B times A x, worked out by hand") {
  // A x = (1·2 + 0·3, 1·2 + 1·3) = (2, 5), and B of that is (2 - 5, 10, 4 + 5).
  const AdapterMatrix change{.rank = 2, .scale = 0.5f, .a = {1, 0, 1, 1}, .b = {1, -1, 0, 2, 2, 1}};
  CHECK(add_low_rank({10, 20, 30}, {2, 3}, change) == Vector{8.5f, 25, 34.5f});
}

TEST_CASE("a change whose B is 0 changes nothing") {
  const AdapterMatrix change{.rank = 1, .scale = 2, .a = {1, 1}, .b = {0, 0}};
  CHECK(add_low_rank({1, 2}, {2, 3}, change) == Vector{1, 2});
}

TEST_CASE("the logits with an adapter are those of transformers with PEFT") {
  const Model model = reference_model("gpt2");
  PlainModel plain(model, plain_adapter(model, kAdapters / "gpt2", "gpt2"));
  std::ifstream file(kAdapters / "gpt2/reference.json");
  const nlohmann::json reference = nlohmann::json::parse(file);
  for (const nlohmann::json& one : reference.at("cases")) {
    const Vector logits = plain.logits(one.at("ids")), want = one.at("logits");
    const std::vector<int> places = one.at("places");
    for (std::size_t i = 0; i < want.size(); ++i)
      CHECK(logits[places[i]] == doctest::Approx(want[i]).epsilon(1e-3).scale(1));
  }
}

TEST_CASE("the logits with either adapter of tales-6m are the engine's") {
  Model model = Model::load(find_model("tales-6m"), make_cpu_device(2));
  const std::vector<int> text{321, 11, 5, 900, 17};
  const Vector alone = copy_of(model.next_logits(text));
  for (const char* name : {"aesop", "arabian-nights"}) {
    CAPTURE(name);
    PlainModel plain(model, try_adapter(model, name, text));
    const Vector logits = plain.logits(text), want = copy_of(model.next_logits(text));
    float difference = 0.0f, change = 0.0f;
    for (std::size_t i = 0; i < want.size(); ++i) {
      difference = std::max(difference, std::abs(logits[i] - want[i]));
      change = std::max(change, std::abs(alone[i] - want[i]));
    }
    CHECK(difference < 1e-3f);
    CHECK(change > 0.1f);
  }
}

TEST_CASE("of a text that is longer than the context, the end is tried") {
  Model model = Model::load(find_model("tales-6m"), make_cpu_device(2));
  model.limit_context(16);
  std::vector<int> text;
  for (int i = 0; i < 24; ++i) text.push_back((i * 1237 + 31) % 4000);
  const auto said = [&](std::span<const int> tokens) {
    Captured captured(stderr);
    try_adapter(model, "aesop", tokens);
    return captured.text();
  };
  const std::string whole = said(text);
  CHECK(contains(whole, "perplexity of the prompt with the adapter: "));
  CHECK(whole == said(std::span(text).last(16)));
  CHECK(whole != said(std::span(text).first(16)));
}

/// exp of the mean of -log p of the tokens after the first, or nothing for a single token.
std::optional<double> perplexity_of(Model& model, const std::vector<int>& text) {
  if (text.size() < 2) return {};
  const std::span<const float> logits = model.last_logits(text, static_cast<int>(text.size()));
  const std::size_t width = logits.size() / text.size();
  double sum = 0.0;
  for (std::size_t i = 1; i < text.size(); ++i) {
    const std::span<const float> row = logits.subspan((i - 1) * width, width);
    double exponentials = 0.0;
    for (const float logit : row) exponentials += std::exp(static_cast<double>(logit));
    sum += std::log(exponentials) - static_cast<double>(row[static_cast<std::size_t>(text[i])]);
  }
  return std::exp(sum / static_cast<double>(text.size() - 1));
}

TEST_CASE("the perplexities are those of the tokens after the first, without the adapter and with it") {
  for (const std::vector<int>& text :
       {std::vector{321, 11, 5, 900, 17}, std::vector{321, 11}, std::vector{321}}) {
    Model model = Model::load(find_model("tales-6m"), make_cpu_device(2));
    const std::optional<double> without = perplexity_of(model, text);
    Captured captured(stderr);
    try_adapter(model, "aesop", text);
    const std::optional<double> with = perplexity_of(model, text);
    double printed[2] = {};
    const int found = std::sscanf(captured.text().c_str(),
                                  "perplexity of the prompt without the adapter: %lf\n"
                                  "perplexity of the prompt with the adapter: %lf\n",
                                  &printed[0], &printed[1]);
    CHECK(found == (without ? 2 : -1));
    if (!without) continue;
    CHECK(printed[0] == doctest::Approx(*without).epsilon(1e-3));
    CHECK(printed[1] == doctest::Approx(*with).epsilon(1e-3));
    CHECK(printed[0] != printed[1]);
  }
}

TEST_CASE("without an adapter the loops are those of the model alone") {
  PlainModel plain(reference_model("gpt2"));
  CHECK(difference_from_reference("gpt2", [&](const auto& text) { return plain.logits(text); }) < 1e-4);
}

TEST_CASE("--adapter prints two perplexities, the adapter's being better for its own style") {
  const ProgramRun result = run_program(STAIRCASE_STEP_PROGRAM,
                                        "--adapter aesop --prompt 'A Fox saw some Grapes hanging from a high "
                                        "Vine.' --max-new-tokens 1 --plain-loops");
  REQUIRE(result.status == 0);
  const auto value = [&](const std::string& words) {
    const std::size_t place = result.err.find("perplexity of the prompt " + words + " the adapter: ");
    REQUIRE(place != std::string::npos);
    return std::stod(result.err.substr(result.err.find(": ", place) + 2));
  };
  CHECK(value("with") < value("without"));
  CHECK(contains(result.err, "4096 logits differ by "));
}

TEST_CASE("an adapter of another model and one that is not there are refused by name") {
  const auto refusal = [](const std::string& adapter) {
    const ProgramRun result =
        run_program(STAIRCASE_STEP_PROGRAM, "--prompt A --max-new-tokens 1 --adapter " + adapter);
    CHECK(result.status == 1);
    return result.err;
  };
  CHECK(contains(refusal((kAdapters / "llama-3").string()), "target_modules names"));
  CHECK(contains(refusal((kAdapters / "gpt2").string()), "has shape [4, 64]"));
  CHECK(contains(refusal("sop"), "--adapter sop: no such adapter"));
}

}  // namespace
}  // namespace staircase
