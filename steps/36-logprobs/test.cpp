#include <doctest/doctest.h>

#include <cmath>

#include "generate.h"
#include "tests/error_message.h"
#include "tests/huge_model.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(find_model("tales-6m"));
  return tokenizer;
}

/// A text, what was reported about each token, and what was shown.
struct Continued {
  std::vector<Token> told;
  std::string shown;
  Generation generation;
};

std::vector<Continued> continued(const Prompts& prompts, const RowOptions& options, int copies = 1,
                                 int slots = 0) {
  std::vector<Continued> results(prompts.size() * copies);
  if (slots == 0) slots = static_cast<int>(results.size());
  StaticKvCache cache(tales(), slots);
  const auto texts = generate(tales(), tales_tokenizer(), prompts, copies, options, slots, cache,
                              [&](int number, const Token& token) {
                                results[number].told.push_back(token);
                                results[number].shown +=
                                    token.text.value_or(std::string(tokenizer().bytes(token.id)));
                              });
  for (std::size_t i = 0; i < texts.size(); ++i) results[i].generation = texts[i];
  return results;
}

/// ln softmax in double precision, straight from the definition.
std::vector<double> plain_log_softmax(std::span<const float> logits) {
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  std::vector<double> logprobs;
  for (const float logit : logits) logprobs.push_back(logit - std::log(sum));
  return logprobs;
}

/// The log-probabilities reported for new tokens are those of the whole text when it is read in one pass,
/// without options, cache or batch.
void check_as_if_read(const std::vector<int>& prompt, const std::vector<Token>& tokens, int count) {
  std::vector<int> text = prompt;
  for (const Token& token : tokens) text.push_back(token.id);
  const std::size_t vocab_size = tales().config().vocab_size;
  REQUIRE(!tokens.empty());
  const std::span<const float> logits = tales().last_logits(text, static_cast<int>(text.size()));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto want = plain_log_softmax(logits.subspan((prompt.size() + i - 1) * vocab_size, vocab_size));
    REQUIRE(tokens[i].logprobs);
    const Logprobs& got = *tokens[i].logprobs;
    CHECK(*got.own == doctest::Approx(want[tokens[i].id]).epsilon(1e-4));
    REQUIRE(got.likeliest.size() == static_cast<std::size_t>(count));
    std::vector<double> falling = want;
    std::ranges::sort(falling, std::greater<>());
    for (int place = 0; place < count; ++place) {
      CHECK(got.likeliest[place].logprob == doctest::Approx(falling[place]).epsilon(1e-4));
      CHECK(got.likeliest[place].logprob ==
            doctest::Approx(want[got.likeliest[place].token_id]).epsilon(1e-4));
    }
  }
}

const Prompts kPrompts{{321, 1682}, {1294, 259, 12}, {4095}};

}  // namespace

TEST_CASE("an end-of-text token that ends nothing is shown, even with stop sequences") {
  RowOptions options;
  options.stopping = {.max_new_tokens = 3, .ignore_eos = true};
  options.stop.sequences = {"zzz"};
  StopFilter filter(options.stop, tokenizer());
  const int eos = tales().config().eos_token_id;
  std::string shown;
  for (int count = 0; const int id : {eos, 321, eos}) {
    Token token{id};
    ++count;
    CHECK(end_of_text(token, filter, count, eos, options).has_value() == (count == 3));
    shown += *token.text;
  }
  CHECK(shown == "<|endoftext|>The<|endoftext|>");
}

TEST_CASE("a batch may have more logits than an int can number") {
  RowOptions options;
  options.stopping.max_new_tokens = 1;
  Model model = huge_model();
  const auto texts = generate(model, tales_tokenizer(), huge_prompts(), 1, options, kHugeRows, no_cache(),
                              [](int, const Token&) {});
  for (int row = 0; row < kHugeRows; ++row) CHECK(texts[row].tokens == std::vector<int>{0, row + 1});
}

TEST_CASE("log_softmax is the logarithm of the softmax, in double precision and the plain way") {
  std::mt19937 generator(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<float> logits;
    for (int i = 0; i < 1 + round * 7; ++i)
      logits.push_back(static_cast<float>(generator() % 4000) / 100.0f - 20.0f);
    const std::vector<float> got = log_softmax(logits);
    const std::vector<double> want = plain_log_softmax(logits);
    REQUIRE(got.size() == want.size());
    for (std::size_t i = 0; i < logits.size(); ++i) CHECK(got[i] == doctest::Approx(want[i]));
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

TEST_CASE("ties go to the lowest id, and no more tokens are reported than there are") {
  const std::vector<float> logprobs{-2.0f, -1.0f, -3.0f, -1.0f};
  const Logprobs got = logprobs_of(2, logprobs, 20);
  CHECK(*got.own == -3.0f);
  std::vector<int> ids;
  for (const Logprob& one : got.likeliest) {
    ids.push_back(one.token_id);
    CHECK(one.logprob == logprobs[one.token_id]);
  }
  CHECK(ids == std::vector<int>{1, 3, 0, 2});
  CHECK(logprobs_of(2, logprobs, 0).likeliest.empty());
  CHECK(*logprobs_of(2, logprobs, 0).own == -3.0f);
}

TEST_CASE("the most likely tokens are those of Hugging Face's model, with the same distances") {
  for (const auto& one : reference("logits.json")["cases"]) {
    const std::vector<int> text = one["tokens"], ids = one["top5_ids"];
    const std::vector<double> logits = one["top5_logits"];
    RowOptions options{{.stopping = {.max_new_tokens = 1}}};
    options.logprobs.count = 5;
    const Token token = continued({text}, options)[0].told[0];
    CHECK(token.id == ids[0]);
    REQUIRE(token.logprobs);
    REQUIRE(token.logprobs->likeliest.size() == 5);
    CHECK(*token.logprobs->own == token.logprobs->likeliest[0].logprob);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const Logprob& got = token.logprobs->likeliest[i];
      CHECK(got.token_id == ids[i]);
      CHECK(got.logprob - *token.logprobs->own == doctest::Approx(logits[i] - logits[0]).epsilon(1e-3));
    }
  }
}

TEST_CASE("the log-probabilities are the model's, whatever the options do to its logits") {
  RowOptions options{{.stopping = {.max_new_tokens = 25},
                      .sampling = {.do_sample = true,
                                   .seed = 3,
                                   .presence_penalty = 0.3f,
                                   .frequency_penalty = 1.3f,
                                   .repetition_penalty = 1.7f,
                                   .temperature = 0.7f,
                                   .top_k = 50,
                                   .top_p = 0.95f}}};
  options.stop = {{"zzz"}};
  options.length.min_new_tokens = 20;
  options.logprobs.count = 3;
  for (const int slots : {2, 6}) {
    const auto texts = continued(kPrompts, options, 2, slots);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      REQUIRE(texts[i].told.size() >= 20);
      check_as_if_read(kPrompts[i / 2], texts[i].told, 3);
    }
  }
}

TEST_CASE("a program may change the logits before and after the options without changing a log-probability") {
  RowOptions options;
  options.stopping = {.max_new_tokens = 6, .ignore_eos = true};
  options.logprobs.count = 3;
  options.sampling.top_k = 2;
  std::vector<std::ptrdiff_t> kept;
  options.edit_raw_logits = [](std::span<float> logits, auto /*text*/) { logits[7] += 1000.0f; };
  options.edit_final_logits = [&](std::span<float> logits) {
    kept.push_back(std::ranges::count_if(logits, [](float score) { return score != kMasked; }));
    logits[7] = kMasked;
  };
  const auto changed = continued({kPrompts[0]}, options);
  check_as_if_read(kPrompts[0], changed[0].told, 3);
  CHECK(kept == std::vector<std::ptrdiff_t>(6, 2));  // the token that came first, and the best of the others
  options.edit_raw_logits = nullptr;
  options.edit_final_logits = nullptr;
  CHECK(changed[0].generation.tokens == continued({kPrompts[0]}, options)[0].generation.tokens);
}

TEST_CASE("a masked token has the log-probability that the model gives it") {
  // "ending" of the reference stops early.
  const auto& run = reference("batch.json")["cases"].back();
  const std::vector<int> prompt = run["prompt_ids"];
  const int length = static_cast<int>(run["ids"].size());
  RowOptions options{{.stopping = {.max_new_tokens = length + 3}}};
  options.length.min_new_tokens = length;
  options.logprobs.count = 1;
  const std::vector<Token> told = continued({prompt}, options)[0].told;
  CHECK(told[length - 1].id != tales().config().eos_token_id);
  REQUIRE(told[length - 1].logprobs);
  CHECK(told[length - 1].logprobs->likeliest[0].token_id == tales().config().eos_token_id);
  CHECK(*told[length - 1].logprobs->own < told[length - 1].logprobs->likeliest[0].logprob);
  check_as_if_read(prompt, told, 1);
}

TEST_CASE("with all options together, each text of a queue is the same as alone") {
  Prompts prompts = kPrompts;
  prompts.push_back(reference("batch.json")["cases"].back()["prompt_ids"]);
  for (const bool do_sample : {false, true}) {
    RowOptions options{
        {.stopping = {.max_new_tokens = 24},
         .sampling = {.do_sample = do_sample, .seed = 20, .frequency_penalty = 0.2f, .top_k = 30}}};
    options.stop = {{"he w", " and", "q"}};
    options.length.min_new_tokens = 16;
    options.logprobs.count = 2;
    const int copies = do_sample ? 3 : 2;
    std::vector<Continued> alone;
    int stopped = 0;
    for (unsigned i = 0; i < prompts.size() * copies; ++i) {
      RowOptions own = options;
      own.sampling.seed += i;
      alone.push_back(continued({prompts[i / copies]}, own)[0]);
      stopped += alone.back().generation.finish_reason == FinishReason::kStop;
    }
    CHECK(stopped > 2);
    CHECK(stopped < std::ssize(alone));
    for (const int slots : {copies, 5, 4 * copies}) {
      const std::vector<Continued> together = continued(prompts, options, copies, slots);
      for (std::size_t i = 0; i < together.size(); ++i) {
        CHECK(together[i].generation.tokens == alone[i].generation.tokens);
        CHECK(together[i].generation.finish_reason == alone[i].generation.finish_reason);
        CHECK(together[i].shown == alone[i].shown);
        REQUIRE(together[i].told.size() == alone[i].told.size());
        for (std::size_t token = 0; token < alone[i].told.size(); ++token) {
          REQUIRE(together[i].told[token].logprobs);
          REQUIRE(alone[i].told[token].logprobs);
          const Logprobs &got = *together[i].told[token].logprobs, &want = *alone[i].told[token].logprobs;
          CHECK(*got.own == doctest::Approx(*want.own).epsilon(1e-4));
          CHECK(got.likeliest[1].logprob == doctest::Approx(want.likeliest[1].logprob).epsilon(1e-4));
        }
      }
    }
  }
}

TEST_CASE("nothing appears unrequested, and a request changes no text") {
  RowOptions options{{.stopping = {.max_new_tokens = 12}, .sampling = {.do_sample = true, .seed = 2}}};
  const auto plain = continued(kPrompts, options);
  CHECK(!plain[0].told[0].logprobs);
  options.logprobs.count = 0;
  const auto told = continued(kPrompts, options);
  REQUIRE(told[0].told[0].logprobs);
  CHECK(told[0].told[0].logprobs->own);
  CHECK(told[0].told[0].logprobs->likeliest.empty());
  for (std::size_t i = 0; i < plain.size(); ++i)
    CHECK(told[i].generation.tokens == plain[i].generation.tokens);
}

TEST_CASE("the program prints to a terminal and as JSON") {
  const std::string arguments = "--logprobs 2 --max-new-tokens 3 --prompt 'The queen' --prompt ''";
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--json " + arguments);
  REQUIRE(run.status == 0);
  const auto sequences = run.json()["sequences"];
  REQUIRE(sequences.size() == 2);
  const ProgramRun lines = run_program(STAIRCASE_STEP_PROGRAM, arguments);
  CHECK(lines.status == 0);
  for (const auto& sequence : sequences) {
    REQUIRE(sequence["logprobs"].size() == sequence["token_ids"].size());
    for (std::size_t i = 0; i < sequence["logprobs"].size(); ++i) {
      const auto& one = sequence["logprobs"][i];
      CHECK(one["token_id"] == sequence["token_ids"][i]);
      CHECK(one["top_logprobs"].size() == 2);
      CHECK(one["logprob"] == one["top_logprobs"][0]["logprob"]);  // greedy
      CHECK(contains(lines.err, fmt::format("{:.4f}", one["logprob"].get<double>())));
    }
  }
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--json --max-new-tokens 3").out.find("logprob") ==
        std::string::npos);
  for (const char* wrong : {"--logprobs -1", "--logprobs 21", "--logprobs x", "--logprobs"}) {
    const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, wrong);
    CHECK(refused.status == 2);
    CHECK(contains(refused.err, "--logprobs"));
    CHECK(refused.out.empty());
  }
}
