#include <doctest/doctest.h>

#include <array>

#include "generate.h"
#include "tests/error_message.h"
#include "tests/processors.h"
#include "tests/run_program.h"

using namespace staircase;

TEST_CASE("without its options the step chooses what Hugging Face's greedy decoding chooses") {
  CHECK(difference_from_greedy([](const std::vector<int>& prompt, int count) {
          std::mt19937 generator(0);
          const TextOptions options{.stopping = {.max_new_tokens = count}};
          return tokens_after(prompt.size(),
                              generate(tales(), prompt, options, generator, [](const Token&) {}).tokens);
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

TEST_CASE("the kept tokens and their probabilities agree with Hugging Face's processors") {
  CHECK(difference_from_processors({"temperature", "top_k", "top_p"}, 64, process_steps) == "");
}

/// Runs the step's program without a model, so that only the checks can come first.
ProgramRun run(const std::string& arguments) {
  return run_program(STAIRCASE_STEP_PROGRAM, "--model /nonexistent " + arguments);
}

TEST_CASE("near temperature 0 only the most likely token is left, whichever it is") {
  for (std::size_t best = 0; best < 4; ++best) {
    std::vector<float> logits(4, 1.0f), wanted(4, kMasked);
    wanted[best] = logits[best] = 2.0f;
    apply_temperature(logits, 0.0f);
    CHECK(logits == wanted);
  }
}

TEST_CASE("an impossible value is refused with its option, the value and the range, before any work") {
  const std::string one = "1 or more", none = "0 or more", number = "a number of 0 or more",
                    share = "above 0 and at most 1";
  const std::vector<std::array<std::string, 3>> refusals{
      {"--max-new-tokens", "-1", none},
      {"--max-new-tokens", "-5", none},
      {"--num-return-sequences", "0", one},
      {"--num-return-sequences", "-1", one},
      {"--show-candidates", "-1", none},
      {"--temperature", "-0.5", number},
      {"--temperature", "-1e-30", number},
      {"--temperature", "inf", number},
      {"--temperature", "-inf", number},
      {"--temperature", "nan", number},
      {"--top-k", "0", one},
      {"--top-k", "-3", one},
      {"--top-p", "0", share},
      {"--top-p", "-0.1", share},
      {"--top-p", "1.5", share},
      {"--top-p", "inf", share},
      {"--top-p", "nan", share},
  };
  for (const auto& [option, value, range] : refusals) {
    for (const std::string others : {"", "--do-sample --json "}) {
      const ProgramRun refused = run(others + option + "=" + value);
      CHECK(refused.status == 2);
      CHECK(refused.out == "");
      CHECK(refused.err == fmt::format("error: {} is {}, but it must be {}\n", option, value, range));
    }
  }
}

TEST_CASE("a seed is a whole number that is not negative") {
  const ProgramRun refused = run("--seed=-1");
  CHECK(refused.status == 2);
  CHECK(begins_with(refused.err, "error: --seed is -1, but it must be 0 or more\n"));
}

TEST_CASE("several texts of one prompt need --do-sample") {
  const std::string sentence =
      "--num-return-sequences 2 needs --do-sample: without it all of them would be the same";
  const ProgramRun refused = run("--num-return-sequences 2");
  CHECK(refused.status == 2);
  CHECK(refused.out == "");
  CHECK(refused.err == "error: " + sentence + "\n");
  CHECK(run("--num-return-sequences 2 --temperature 0.7").err == "error: " + sentence + "\n");
  for (const std::string fine : {"--num-return-sequences 1", "--num-return-sequences 2 --do-sample"}) {
    CHECK(run(fine).err.find(sentence) == std::string::npos);
  }
}

TEST_CASE("the edges of each range are allowed") {
  // The first error is then the missing model.
  for (const std::string arguments :
       {"", "--max-new-tokens 0", "--max-new-tokens 2147483647", "--num-return-sequences 1",
        "--do-sample --num-return-sequences 1000", "--seed 0", "--seed 4294967295", "--show-candidates 0",
        "--show-candidates 1", "--temperature 0", "--temperature 1e-30", "--temperature 3e38", "--top-k 1",
        "--top-k 2147483647", "--top-p 1e-30", "--top-p 0.9 --do-sample", "--top-p 1"}) {
    CAPTURE(arguments);
    const ProgramRun accepted = run(arguments);
    CHECK(accepted.status == 1);
    CHECK(accepted.err.find("must be") == std::string::npos);
    CHECK(contains(accepted.err, "/nonexistent"));
  }
}

TEST_CASE("a range is checked before any combination of options") {
  for (const std::string arguments : {"--temperature 0 --top-p 1.5", "--top-p 1.5 --num-return-sequences 2",
                                      "--top-p 1.5 --do-sample --temperature 0"}) {
    CHECK(run(arguments).err == "error: --top-p is 1.5, but it must be above 0 and at most 1\n");
  }
}

TEST_CASE("--max-new-tokens 0 is a run without a text") {
  const ProgramRun nothing = run_program(STAIRCASE_STEP_PROGRAM, "--json --max-new-tokens 0");
  REQUIRE(nothing.status == 0);
  const auto sequence = nothing.json()["sequences"][0];
  CHECK(sequence["token_ids"].empty());
  CHECK(sequence["finish_reason"] == "length");
}

TEST_CASE("options that do nothing together cause a warning, and the program goes on") {
  const std::string greedy = "warning: --temperature, --top-k and --top-p do nothing without --do-sample\n";
  const std::string cold = "warning: a temperature near 0 is greedy decoding\n";
  for (const std::string arguments : {"--temperature 0", "--temperature 0.7", "--top-k 5", "--top-p 0.5"}) {
    const ProgramRun warned = run(arguments);
    CHECK(warned.status == 1);
    CHECK(begins_with(warned.err, greedy + "error: "));
    CHECK(begins_with(run("--do-sample " + arguments).err,
                      (arguments == "--temperature 0" ? cold : "") + "error: "));
    CHECK(begins_with(run("--show-candidates 3 " + arguments).err, "error: "));
  }
  CHECK(begins_with(run("--do-sample --temperature 0.1").err, "error: "));
  CHECK(begins_with(run("").err, "error: "));
}
