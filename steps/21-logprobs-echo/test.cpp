#include <doctest/doctest.h>

#include "common/model/safetensors.h"
#include "speculative.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/tiny_model.h"

using namespace staircase;

namespace {

/// The new tokens of each text.
std::vector<std::vector<Token>> continued(const Prompts& prompts, const GenerateOptions& options) {
  std::vector<std::vector<Token>> tokens(prompts.size() * options.num_return_sequences);
  StaticKvCache cache(tales(), static_cast<int>(tokens.size()));
  generate(tales(), prompts, options, &cache,
           [&](int row, const Token& token) { tokens[row].push_back(token); });
  return tokens;
}

/// The log-probabilities that new tokens were given are those of the whole text when it is read as a prompt,
/// without options, cache, batch or draft model.
void check_as_if_read(const std::vector<int>& prompt, const std::vector<Token>& tokens, int count) {
  std::vector<int> text = prompt;
  for (const Token& token : tokens) text.push_back(token.id);
  const std::vector<Token> read = score(tales(), text, count);
  REQUIRE(!tokens.empty());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const Logprobs &got = *tokens[i].logprobs, &want = *read[prompt.size() + i].logprobs;
    CHECK(*got.own == doctest::Approx(*want.own).epsilon(1e-4));
    REQUIRE(got.likeliest.size() == static_cast<std::size_t>(count));
    for (int place = 0; place < count; ++place) {
      CHECK(got.likeliest[place].logprob == doctest::Approx(want.likeliest[place].logprob).epsilon(1e-4));
    }
  }
}

const Prompts kPrompts{{321, 1682}, {1294, 259, 12}, {4095}};

}  // namespace

TEST_CASE("log_softmax is the logarithm of the softmax, in double precision and the plain way") {
  std::mt19937 generator(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<float> logits;
    for (int i = 0; i < 1 + round * 7; ++i)
      logits.push_back(static_cast<float>(generator() % 4000) / 100.0f - 20.0f);
    double sum = 0.0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    const std::vector<float> got = log_softmax(logits);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      CHECK(got[i] == doctest::Approx(std::log(std::exp(static_cast<double>(logits[i])) / sum)));
    }
  }
}

TEST_CASE("neither large logits nor tiny probabilities are lost") {
  const std::vector<float> logits{1000.0f, 1000.0f, 600.0f, -3000.0f};
  const std::vector<float> got = log_softmax(logits);
  const double half = std::log(0.5);
  for (std::size_t i = 0; i < logits.size(); ++i)
    CHECK(got[i] == doctest::Approx(logits[i] - 1000.0f + half));
  CHECK(log_softmax(std::vector<float>{-7.0f})[0] == 0.0f);
}

TEST_CASE("among equals the lowest id comes first, and no more are told than there are") {
  const std::vector<float> logprobs{-2.0f, -1.0f, -3.0f, -1.0f};
  const Logprobs got = logprobs_of(2, logprobs, 20);
  CHECK(*got.own == -3.0f);
  std::vector<int> ids;
  for (const Logprob& one : got.likeliest) ids.push_back(one.token_id);
  CHECK(ids == std::vector<int>{1, 3, 0, 2});
  CHECK(logprobs_of(2, logprobs, 0).likeliest.empty());
}

TEST_CASE("the perplexity of a text is the one of Hugging Face's model") {
  for (const auto& one : reference("logits.json")["cases"]) {
    const std::vector<int> text = one["tokens"];
    CAPTURE(one["name"].get<std::string>());
    const std::vector<Token> tokens = score(tales(), text, 0);
    REQUIRE(tokens.size() == text.size());
    CHECK(!tokens[0].logprobs->own);
    const std::optional<double> got = perplexity(tokens);
    CHECK(got.has_value() == !one["mean_nll"].is_null());
    if (got) CHECK(std::log(*got) == doctest::Approx(one["mean_nll"].get<double>()).epsilon(1e-5));
  }
}

TEST_CASE("the likeliest tokens are those of Hugging Face's model, and as far apart") {
  for (const auto& one : reference("logits.json")["cases"]) {
    const std::vector<int> text = one["tokens"], ids = one["top5_ids"];
    const std::vector<double> logits = one["top5_logits"];
    const Token token = continued({text}, {.max_new_tokens = 1, .logprobs = 5})[0][0];
    CHECK(token.id == ids[0]);
    CHECK(*token.logprobs->own == token.logprobs->likeliest[0].logprob);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const Logprob& got = token.logprobs->likeliest[i];
      CHECK(got.token_id == ids[i]);
      CHECK(got.logprob - *token.logprobs->own == doctest::Approx(logits[i] - logits[0]).epsilon(1e-3));
    }
  }
}

TEST_CASE("the log-probabilities are the model's, whatever the options make of its logits") {
  GenerateOptions options{.max_new_tokens = 25, .min_new_tokens = 20, .seed = 3, .logprobs = 3};
  options.stop = {{"zzz"}, nullptr};
  const Tokenizer tokenizer = Tokenizer::load(find_model("tales-6m"));
  options.stop.tokenizer = &tokenizer;
  options.sampling = {true, 0.7f, 0.3f, 1.3f, 1.7f, 50, 0.95f};
  options.num_return_sequences = 2;
  const auto texts = continued(kPrompts, options);
  for (std::size_t i = 0; i < texts.size(); ++i) check_as_if_read(kPrompts[i / 2], texts[i], 3);
}

TEST_CASE("behind a draft model they are the target's") {
  Gpt2 draft = tales().load_beside(find_model("tales-1m"));
  for (const bool do_sample : {false, true}) {
    GenerateOptions options{.max_new_tokens = 30, .ignore_eos = true, .seed = 5, .logprobs = 2};
    options.sampling.do_sample = do_sample;
    Speculation speculation;
    std::vector<Token> tokens;
    speculate(tales(), draft, kPrompts[0], options, speculation,
              [&](const Token& token) { tokens.push_back(token); });
    REQUIRE(speculation.accepted > 0);
    REQUIRE(speculation.rejected > 0);
    check_as_if_read(kPrompts[0], tokens, 2);
  }
}

TEST_CASE("of a text longer than the context the last tokens count, as if they were all") {
  const TemporaryFolder folder;
  TinyModel(1, 5, 13).write(folder.path());
  Gpt2 model = Gpt2::load(folder.path(), make_cpu_device(1));
  std::vector<int> text;
  for (int i = 0; i < 30; ++i) text.push_back(i * i % 5);
  const std::vector<Token> all = score(model, text, 1), seen = score(model, std::span(text).last(13), 1);
  REQUIRE(all.size() == 30);
  for (int i = 0; i < 30; ++i) {
    CHECK(all[i].id == text[i]);
    CHECK(all[i].logprobs->own == (i < 17 ? std::nullopt : seen[i - 17].logprobs->own));
  }
  CHECK(perplexity(all) == perplexity(seen));
}

TEST_CASE("what was not asked for is not there") {
  CHECK(!continued(kPrompts, {.max_new_tokens = 2})[0][0].logprobs);
}

TEST_CASE("the program tells all of it in JSON") {
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM,
                  "--json --echo --logprobs 2 --max-new-tokens 3 --prompt 'The queen' --prompt ''");
  REQUIRE(run.status == 0);
  const auto sequences = nlohmann::json::parse(run.out)["sequences"];
  REQUIRE(sequences.size() == 2);
  const auto& first = sequences[0];
  CHECK(first["prompt_logprobs"].size() == 2);
  CHECK(first["prompt_logprobs"][0]["logprob"].is_null());
  // "len2" of the reference.
  const double nll = reference("logits.json")["cases"][1]["mean_nll"];
  CHECK(first["prompt_logprobs"][1]["logprob"].get<double>() == doctest::Approx(-nll).epsilon(1e-5));
  CHECK(first["perplexity"].get<double>() == doctest::Approx(std::exp(nll)).epsilon(1e-4));
  CHECK(sequences[1]["perplexity"].is_null());
  for (const auto& sequence : sequences) {
    REQUIRE(sequence["logprobs"].size() == sequence["token_ids"].size());
    for (std::size_t i = 0; i < sequence["logprobs"].size(); ++i) {
      const auto& one = sequence["logprobs"][i];
      CHECK(one["token_id"] == sequence["token_ids"][i]);
      CHECK(one["top_logprobs"].size() == 2);
      CHECK(one["logprob"] == one["top_logprobs"][0]["logprob"]);  // greedy
    }
  }
}

TEST_CASE("the program reads a text without writing on") {
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM, "--echo --logprobs 1 --max-new-tokens 0 --prompt 'The queen'");
  CHECK(run.status == 0);
  CHECK(run.out == "The queen\n");
  CHECK(run.err.find("\" queen\"") != std::string::npos);
  CHECK(run.err.find("-5.8181") != std::string::npos);
  CHECK(run.err.find("perplexity of prompt 1: 336.3") != std::string::npos);
  for (const char* options :
       {"--draft-model tales-1m", "--no-use-cache", "--json", "--do-sample --num-return-sequences 3"}) {
    const std::string arguments = fmt::format("--echo --max-new-tokens 0 --prompt The {}", options);
    CHECK(run_program(STAIRCASE_STEP_PROGRAM, arguments).status == 0);
  }
  const ProgramRun more =
      run_program(STAIRCASE_STEP_PROGRAM, "--echo --max-new-tokens 9 --prompt 'The queen'");
  const ProgramRun plain = run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 9 --prompt 'The queen'");
  CHECK(more.out == "The queen" + plain.out);
  for (const char* wrong : {"--logprobs -1", "--logprobs 21", "--logprobs x", "--max-new-tokens 0",
                            "--echo --max-new-tokens -1"}) {
    CHECK(run_program(STAIRCASE_STEP_PROGRAM, wrong).status == 2);
  }
}

TEST_CASE("what cannot be is refused before the prompt is shown") {
  const TemporaryFolder folder;
  const std::string drift = "--prompt b --drift " + (folder.path() / "drift.svg").string();
  const std::string benchmark = "--prompt b --benchmark-lengths 1 --benchmark " + folder.path().string();
  for (const std::string& wrong : {std::string("--draft-model tales-1m --draft-model tales-6m"),
                                   std::string("--draft-model tales-1m --no-use-cache"), drift, benchmark}) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--echo --prompt 'a b c' " + wrong);
    CAPTURE(run.err);
    CHECK(run.status == 2);
    CHECK(run.err.starts_with("error: "));
    CHECK(run.out.empty());
  }
}
