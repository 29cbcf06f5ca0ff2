#include <doctest/doctest.h>

#include <cmath>

#include "generate.h"
#include "scoring.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/tiny_model.h"

using namespace staircase;

TEST_CASE("the log-probabilities of a text have the mean of Hugging Face's model") {
  for (const auto& one : reference("logits.json")["cases"]) {
    const std::vector<int> text = one["tokens"];
    CAPTURE(one["name"].get<std::string>());
    const std::vector<Token> tokens = score(tales(), text, 0);
    REQUIRE(tokens.size() == text.size());
    CHECK(!tokens[0].logprobs->own);
    double sum = 0.0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      CHECK(tokens[i].id == text[i]);
      CHECK(tokens[i].logprobs->likeliest.empty());
      if (i == 0) continue;
      REQUIRE(tokens[i].logprobs->own);
      sum += *tokens[i].logprobs->own;
    }
    REQUIRE(one["mean_nll"].is_null() == (text.size() == 1));
    if (text.size() == 1) continue;
    const double mean = sum / (static_cast<double>(text.size()) - 1.0);
    CHECK(-mean == doctest::Approx(one["mean_nll"].get<double>()).epsilon(1e-5));
  }
}

TEST_CASE("a text is read in one pass, and each token is scored after those before it") {
  const std::vector<int> text = reference("batch.json")["cases"][1]["prompt_ids"];
  std::vector<std::size_t> passes;
  const Unobserved at_the_end;
  tales().on_stage([&](std::string_view name, std::span<const float> values) {
    if (name == "embeddings") passes.push_back(values.size() / tales().config().n_embd);
  });
  const std::vector<Token> tokens = score(tales(), text, 3);
  CHECK(passes == std::vector<std::size_t>{text.size()});
  CHECK(tokens[0].logprobs->likeliest.empty());
  for (std::size_t i = 1; i < text.size(); ++i) {
    const std::vector<float> want = log_softmax(tales().next_logits(std::span(text).first(i)));
    const Logprobs& got = *tokens[i].logprobs;
    CHECK(*got.own == doctest::Approx(want[text[i]]).epsilon(1e-4));
    REQUIRE(got.likeliest.size() == 3);
    CHECK(got.likeliest[0].token_id == argmax(want));
    for (const Logprob& one : got.likeliest)
      CHECK(one.logprob == doctest::Approx(want[one.token_id]).epsilon(1e-4));
  }
}

TEST_CASE("a sampled text gets the log-probabilities that it had when it was sampled") {
  const Prompts prompts{{321, 1682}, {1294, 259, 12}, {4095}};
  RowOptions options{{.stopping = {.max_new_tokens = 25},
                      .sampling = {.do_sample = true, .frequency_penalty = 0.5f, .top_k = 50}}};
  options.length.min_new_tokens = 20;
  options.logprobs.count = 2;
  std::vector<std::vector<Token>> told(6);
  StaticKvCache cache(tales(), 4);
  const auto texts = generate(tales(), tales_tokenizer(), prompts, 2, options, 4, cache,
                              [&](int number, const Token& token) { told[number].push_back(token); });
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::vector<Token> read = score(tales(), texts[i].tokens, 2);
    const std::size_t length = prompts[i / 2].size();
    REQUIRE(told[i].size() >= 20);
    REQUIRE(read.size() == length + told[i].size());
    for (std::size_t t = 0; t < told[i].size(); ++t) {
      const Logprobs &got = *told[i][t].logprobs, &want = *read[length + t].logprobs;
      CHECK(*got.own == doctest::Approx(*want.own).epsilon(1e-4));
      for (int place = 0; place < 2; ++place) {
        CHECK(got.likeliest[place].logprob == doctest::Approx(want.likeliest[place].logprob).epsilon(1e-4));
      }
    }
  }
}

TEST_CASE("of a text longer than the context, the last tokens count, as if they were all") {
  const TemporaryFolder folder;
  TinyModel(1, 5, 13).write(folder.path());
  Model model = Model::load(folder.path(), make_cpu_device(1));
  std::vector<int> text;
  for (int i = 0; i < 30; ++i) text.push_back(i * i % 5);
  const std::vector<Token> all = score(model, text, 1), seen = score(model, std::span(text).last(13), 1);
  REQUIRE(all.size() == 30);
  for (int i = 0; i < 30; ++i) {
    CHECK(all[i].id == text[i]);
    CHECK(all[i].logprobs->own == (i < 17 ? std::nullopt : seen[i - 17].logprobs->own));
  }
}

TEST_CASE("the program prints all of it as JSON") {
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM,
                  "--json --echo --logprobs 2 --max-new-tokens 3 --prompt 'The queen' --prompt ''");
  REQUIRE(run.status == 0);
  const auto sequences = run.json()["sequences"];
  REQUIRE(sequences.size() == 2);
  const auto& first = sequences[0];
  CHECK(first["prompt_logprobs"].size() == 2);
  CHECK(first["prompt_logprobs"][0]["logprob"].is_null());
  CHECK(first["prompt_logprobs"][1]["top_logprobs"].size() == 2);
  // "len2" of the reference.
  const double nll = reference("logits.json")["cases"][1]["mean_nll"];
  CHECK(first["prompt_logprobs"][1]["logprob"].get<double>() == doctest::Approx(-nll).epsilon(1e-5));
  CHECK(sequences[1]["prompt_logprobs"].size() == 1);
  for (const auto& sequence : sequences) {
    REQUIRE(sequence["logprobs"].size() == sequence["token_ids"].size());
    for (std::size_t i = 0; i < sequence["logprobs"].size(); ++i) {
      const auto& one = sequence["logprobs"][i];
      CHECK(one["token_id"] == sequence["token_ids"][i]);
      CHECK(one["top_logprobs"].size() == 2);
      CHECK(one["logprob"] == one["top_logprobs"][0]["logprob"]);  // greedy
    }
  }
  const ProgramRun plain = run_program(STAIRCASE_STEP_PROGRAM, "--json --logprobs 2 --max-new-tokens 3");
  CHECK(contains(plain.out, "\"logprobs\""));
  CHECK(plain.out.find("prompt_logprobs") == std::string::npos);
}

TEST_CASE("the program reads a text without continuing it") {
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM, "--echo --logprobs 1 --max-new-tokens 0 --prompt 'The queen'");
  CHECK(run.status == 0);
  CHECK(run.out == "The queen\n");
  CHECK(contains(run.err, "\" queen\""));
  CHECK(contains(run.err, "-5.8181"));
  for (const char* options :
       {"--no-use-cache", "--json", "--do-sample --num-return-sequences 3", "--stop a --max-batch-size 1"}) {
    const std::string arguments =
        fmt::format("--echo --max-new-tokens 0 --prompt The --prompt '' {}", options);
    CHECK(run_program(STAIRCASE_STEP_PROGRAM, arguments).status == 0);
  }
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 0 --prompt 'The queen'").out == "\n");
  const ProgramRun more =
      run_program(STAIRCASE_STEP_PROGRAM, "--echo --max-new-tokens 9 --prompt 'The queen'");
  const ProgramRun plain = run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 9 --prompt 'The queen'");
  CHECK(more.out == "The queen" + plain.out);
  for (const char* wrong : {"--echo --max-new-tokens -1", "--echo --logprobs 21", "--echo yes"}) {
    CHECK(run_program(STAIRCASE_STEP_PROGRAM, wrong).status == 2);
  }
}

TEST_CASE("a stop sequence, the minimum length and copies change nothing in the report about the prompt") {
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
    CHECK(run.err.find("\" b\"") == std::string::npos);  // a token of the prompt
    CHECK(run.out.empty());
  }
}
