#include <doctest/doctest.h>

#include <cmath>

#include "check.h"
#include "tests/error_message.h"
#include "tests/processors.h"
#include "tests/run_program.h"

using namespace staircase;

TEST_CASE("without its options the step chooses what Hugging Face's greedy decoding chooses") {
  CHECK(difference_from_greedy([](const std::vector<int>& prompt, int count) {
          std::mt19937 generator(0);
          return behind(
              prompt.size(),
              generate(tales(), prompt, {.max_new_tokens = count}, generator, [](const Token&) {}).tokens);
        }) == "");
}

/// Processors of the reference, in the order of the chain.
void process_steps(const std::vector<nlohmann::json>& steps, std::span<float> logits, std::span<const int>) {
  SamplingOptions options;
  for (const auto& step : steps) {
    if (step["op"] == "temperature") options.temperature = step["value"];
    if (step["op"] == "top_k") options.top_k = step["value"];
    if (step["op"] == "top_p") options.top_p = step["value"];
  }
  process(logits, options);
}

TEST_CASE("what is kept, and how likely it is, agrees with Hugging Face's processors") {
  CHECK(difference_from_processors({"temperature", "top_k", "top_p"}, 64, process_steps) == "");
}

struct Refusal {
  GenerateOptions options;
  std::string sentence;
};

const float kNaN = std::nanf("");

TEST_CASE("an impossible value is refused with its option, the value and the range") {
  const Refusal refusals[] = {
      {{.max_new_tokens = 0}, "--max-new-tokens is 0, but it must be 1 or more"},
      {{.max_new_tokens = -5}, "--max-new-tokens is -5, but it must be 1 or more"},
      {{.sampling = {.do_sample = true}, .num_return_sequences = 0},
       "--num-return-sequences is 0, but it must be 1 or more"},
      {{.num_return_sequences = -1}, "--num-return-sequences is -1, but it must be 1 or more"},
      {{.show_candidates = -1}, "--show-candidates is -1, but it must be 0 or more"},
      {{.sampling = {.temperature = -0.5f}}, "--temperature is -0.5, but it must be a number of 0 or more"},
      {{.sampling = {.temperature = HUGE_VALF}},
       "--temperature is inf, but it must be a number of 0 or more"},
      {{.sampling = {.temperature = kNaN}}, "--temperature is nan, but it must be a number of 0 or more"},
      {{.sampling = {.top_k = 0}}, "--top-k is 0, but it must be 1 or more"},
      {{.sampling = {.top_k = -3}}, "--top-k is -3, but it must be 1 or more"},
      {{.sampling = {.top_p = 0.0f}}, "--top-p is 0, but it must be above 0 and at most 1"},
      {{.sampling = {.top_p = -0.1f}}, "--top-p is -0.1, but it must be above 0 and at most 1"},
      {{.sampling = {.top_p = 1.5f}}, "--top-p is 1.5, but it must be above 0 and at most 1"},
      {{.sampling = {.top_p = kNaN}}, "--top-p is nan, but it must be above 0 and at most 1"},
      {{.num_return_sequences = 2},
       "--num-return-sequences 2 needs --do-sample: without it all of them would be the same"},
  };
  for (const Refusal& refusal : refusals) {
    CHECK(error_message([&] { check(refusal.options); }) == refusal.sentence);
    CHECK_THROWS_AS(check(refusal.options), UsageError);
  }
}

TEST_CASE("the edges of each range are allowed") {
  const auto accepts = [](const SamplingOptions& sampling) {
    CHECK(error_message([&] { check({.max_new_tokens = 1, .sampling = sampling, .show_candidates = 1}); }) ==
          "");
  };
  accepts({});
  accepts({.temperature = 0.0f});
  accepts({.temperature = 3e38f});
  accepts({.top_k = 1});
  accepts({.top_k = 2'147'483'647});
  accepts({.top_p = 1e-30f});
  accepts({.top_p = 1.0f});
  CHECK(error_message([&] { check({.sampling = {.do_sample = true}, .num_return_sequences = 1000}); }) == "");
}

/// Runs the step's program where there is no model, so that only the check can come first.
ProgramRun run(const std::string& arguments) {
  return run_program(STAIRCASE_STEP_PROGRAM, "--model /nonexistent " + arguments);
}

TEST_CASE("everything is checked before any work is done") {
  for (const std::string arguments :
       {"--top-p 1.5", "--top-p 1.5 --do-sample --show-candidates 3", "--temperature 0 --top-p 1.5",
        "--top-p 1.5 --num-return-sequences 2"}) {
    const ProgramRun refused = run(arguments);
    CHECK(refused.status == 2);
    CHECK(refused.out == "");
    CHECK(refused.err == "error: --top-p is 1.5, but it must be above 0 and at most 1\n");
  }
  CHECK(run("--top-p 0.9 --do-sample").status == 1);
}

TEST_CASE("options that do nothing together are worth a warning, and the program goes on") {
  const std::string greedy =
      "warning: without --do-sample the likeliest token is taken, whatever --temperature, --top-k and "
      "--top-p are\n";
  const std::string cold = "warning: a temperature near 0 is greedy decoding\n";
  for (const std::string arguments : {"--temperature 0.7", "--top-k 5", "--top-p 0.5"}) {
    const ProgramRun warned = run(arguments);
    CHECK(warned.status == 1);
    CHECK(warned.err.starts_with(greedy + "error: "));
    CHECK(run("--do-sample " + arguments).err.starts_with("error: "));
    CHECK(run("--show-candidates 3 " + arguments).err.starts_with("error: "));
  }
  CHECK(run("--do-sample --temperature 0").err.starts_with(cold + "error: "));
  CHECK(run("--do-sample --temperature 0.1").err.starts_with("error: "));
  CHECK(run("").err.starts_with("error: "));
}
