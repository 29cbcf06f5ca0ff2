#include <doctest/doctest.h>

#include <cmath>

#include "scoring.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/tiny_model.h"

using namespace staircase;

namespace {

/// A token with this probability.
Token with_probability(double probability) {
  return {.logprobs = Logprobs{static_cast<float>(std::log(probability))}};
}

}  // namespace

TEST_CASE("the perplexity of a choice among equals is their number, and no token has none") {
  const Token first{.logprobs = Logprobs()};
  for (const int equals : {1, 2, 20, 50257}) {
    const Token token = with_probability(1.0 / equals);
    for (const std::vector<Token>& text : {std::vector{token}, {first, token}, {first, token, token, token}})
      CHECK(*perplexity(text) == doctest::Approx(equals));
  }
  // The geometric mean: 1/2, 1/4 and 1/8 count like 1/4 three times.
  const std::vector<Token> mixed{first, with_probability(0.5), with_probability(0.25),
                                 with_probability(0.125)};
  CHECK(*perplexity(mixed) == doctest::Approx(4.0));
  CHECK(!perplexity(std::vector{first}));
  CHECK(!perplexity({}));
}

TEST_CASE("the perplexity of a text is the one of Hugging Face's model") {
  for (const auto& one : reference("logits.json")["cases"]) {
    const std::vector<int> text = one["tokens"];
    CAPTURE(one["name"].get<std::string>());
    const std::vector<Token> tokens = score(tales(), text, 0);
    REQUIRE(tokens.size() == text.size());
    CHECK(!tokens[0].logprobs->own);
    for (std::size_t i = 0; i < text.size(); ++i) CHECK(tokens[i].id == text[i]);
    const std::optional<double> got = perplexity(tokens);
    CHECK(got.has_value() == !one["mean_nll"].is_null());
    if (got) CHECK(std::log(*got) == doctest::Approx(one["mean_nll"].get<double>()).epsilon(1e-5));
  }
}

TEST_CASE("the perplexity of a text longer than the context is that of its last tokens") {
  const TemporaryFolder folder;
  TinyModel(1, 5, 13).write(folder.path());
  Model model = Model::load(folder.path(), make_cpu_device(1));
  std::vector<int> text;
  for (int i = 0; i < 30; ++i) text.push_back(i * i % 5);
  const std::vector<Token> all = score(model, text, 1), seen = score(model, std::span(text).last(13), 1);
  REQUIRE(all.size() == 30);
  REQUIRE(perplexity(seen));
  CHECK(perplexity(all) == perplexity(seen));
}

TEST_CASE("the program prints the perplexity of each prompt, in JSON and on the terminal") {
  const std::string arguments =
      "--echo --max-new-tokens 0 --prompt 'The queen' --prompt '' --prompt 'A crow sat'";
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--json " + arguments);
  REQUIRE(run.status == 0);
  const auto sequences = run.json()["sequences"];
  REQUIRE(sequences.size() == 3);
  // "len2" of the reference.
  const double nll = reference("logits.json")["cases"][1]["mean_nll"];
  CHECK(sequences[0]["perplexity"].get<double>() == doctest::Approx(std::exp(nll)).epsilon(1e-4));
  CHECK(sequences[1]["perplexity"].is_null());
  double sum = 0.0;
  const auto& told = sequences[2]["prompt_logprobs"];
  for (std::size_t i = 1; i < told.size(); ++i) sum += told[i]["logprob"].get<double>();
  const double mean = sum / (static_cast<double>(told.size()) - 1.0);
  CHECK(sequences[2]["perplexity"].get<double>() == doctest::Approx(std::exp(-mean)).epsilon(1e-4));

  const ProgramRun shown = run_program(STAIRCASE_STEP_PROGRAM, arguments);
  CHECK(shown.status == 0);
  CHECK(shown.out.find("perplexity") == std::string::npos);
  CHECK(contains(shown.err, "perplexity of prompt 1: 336.3"));
  CHECK(shown.err.find("perplexity of prompt 2") == std::string::npos);  // it has no perplexity
  CHECK(contains(shown.err,
                 fmt::format("perplexity of prompt 3: {:.4f}\n", sequences[2]["perplexity"].get<double>())));
  const ProgramRun silent = run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 0 --prompt 'The queen'");
  CHECK(silent.err.find("perplexity") == std::string::npos);
}

TEST_CASE("the three sentences of the README have its perplexities") {
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM, "--json --echo --max-new-tokens 0 --prompts -",
                  "The wolf ran into the wood.\nThe wood ran into the wolf.\nWolf the wood into ran the.\n");
  REQUIRE(run.status == 0);
  const auto sequences = run.json()["sequences"];
  REQUIRE(sequences.size() == 3);
  CHECK(sequences[0]["perplexity"].get<double>() == doctest::Approx(30.4796).epsilon(1e-3));
  CHECK(sequences[1]["perplexity"].get<double>() == doctest::Approx(253).epsilon(2e-3));
  CHECK(sequences[2]["perplexity"].get<double>() == doctest::Approx(848).epsilon(1e-3));
}

TEST_CASE("a stop sequence, the minimum length and copies do not change the perplexity of the prompt") {
  const auto sequences = [](const std::string& arguments) {
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM,
                    "--json --echo --logprobs 1 --prompt 'The queen' --prompt 'A crow' " + arguments);
    REQUIRE(run.status == 0);
    return run.json()["sequences"];
  };
  const auto plain = sequences("--max-new-tokens 0");
  const auto busy = sequences(
      "--max-new-tokens 20 --min-new-tokens 15 --stop . --do-sample --num-return-sequences 2 --top-k 9 "
      "--max-batch-size 2 --repetition-penalty 1.4");
  REQUIRE(busy.size() == 4);
  for (std::size_t i = 0; i < busy.size(); ++i) {
    CHECK(busy[i]["prompt_logprobs"] == plain[i / 2]["prompt_logprobs"]);
    CHECK(busy[i]["perplexity"] == plain[i / 2]["perplexity"]);
  }
}

TEST_CASE("impossible options are refused before the prompt is shown") {
  for (const std::string wrong :
       {"--num-return-sequences 2", "--min-new-tokens 101", "--on-overflow recompute --refill 100000",
        "--do-sample --num-return-sequences 3 --max-batch-size 2"}) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--echo --prompt 'a b c' " + wrong);
    CAPTURE(run.err);
    CHECK(run.status == 2);
    CHECK(contains(run.err, "error: "));
    CHECK(run.err.find("perplexity") == std::string::npos);
    CHECK(run.out.empty());
  }
}
