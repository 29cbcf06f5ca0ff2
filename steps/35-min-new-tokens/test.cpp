#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "generate.h"
#include "tests/error_message.h"
#include "tests/row_edits.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/tiny_model.h"

using namespace staircase;

namespace {

struct Continued {
  std::vector<int> ids;  ///< the new tokens
  std::vector<Token> told;
  FinishReason finish_reason;
};

std::vector<Continued> continued(Model& model, const Prompts& prompts, const RowOptions& options,
                                 int copies = 1, int slots = 0) {
  std::vector<Continued> results(prompts.size() * copies);
  if (slots == 0) slots = static_cast<int>(results.size());
  StaticKvCache cache(model, slots);
  const auto texts = generate(model, tales_tokenizer(), prompts, copies, options, slots, cache,
                              [&](int number, const Token& token) { results[number].told.push_back(token); });
  for (std::size_t i = 0; i < texts.size(); ++i) {
    results[i].ids = tokens_after(prompts[i / copies].size(), texts[i].tokens);
    results[i].finish_reason = texts[i].finish_reason;
  }
  return results;
}

/// The reference case "ending", which stops early.
struct Ending {
  std::vector<int> prompt, ids;
  int length;
};

Ending ending() {
  const auto& run = reference("batch.json")["cases"].back();
  REQUIRE(run["finish"] == "eos");
  return {run["prompt_ids"], run["ids"], static_cast<int>(run["ids"].size())};
}

}  // namespace

TEST_CASE("a program may change the logits before all options and after them") {
  check_row_edits();
}

TEST_CASE("a model without an end-of-text token loses no other token") {
  std::vector<float> logits{1.0f, 2.0f};
  forbid_early_end(logits, 0, -1, {.min_new_tokens = 3});
  CHECK(logits == std::vector<float>{1.0f, 2.0f});
  forbid_early_end(logits, 0, 1, {.min_new_tokens = 3});
  CHECK(logits == std::vector<float>{1.0f, kMasked});
}

TEST_CASE("a model with several end-of-text tokens loses all of them") {
  std::vector<float> logits{1.0f, 2.0f, 3.0f, 4.0f};
  forbid_early_end(logits, 2, {3, 0}, {.min_new_tokens = 3});
  CHECK(logits == std::vector<float>{kMasked, 2.0f, 3.0f, kMasked});
}

TEST_CASE("only the logit of the end-of-text token is masked, and only before the minimum length") {
  for (int count = 0; count < 6; ++count) {
    std::vector<float> logits{0.5f, -2.0f, 7.0f, 3.0f};
    forbid_early_end(logits, count, 2, {.min_new_tokens = 3});
    CHECK(logits == std::vector<float>{0.5f, -2.0f, count < 3 ? kMasked : 7.0f, 3.0f});
  }
}

TEST_CASE("the end of text cannot come before the minimum number of tokens") {
  const auto [prompt, ids, length] = ending();
  for (const int least : {0, 1, length - 1, length, length + 5}) {
    CAPTURE(least);
    RowOptions options{{.stopping = {.max_new_tokens = length + 20}}};
    options.length.min_new_tokens = least;
    const std::vector<int> got = continued(tales(), {prompt}, options)[0].ids;
    const auto end = std::ranges::find(got, tales().config().eos_token_id);
    CHECK(end - got.begin() >= least);
    // The end of text is token number `length`, after length - 1 others.
    CHECK((got == ids) == (least < length));
    CHECK(std::equal(ids.begin(), ids.end() - 1, got.begin()));
  }
}

TEST_CASE("the end-of-text token is masked before any option reads the logits") {
  const auto [prompt, ids, length] = ending();
  RowOptions options{{.stopping = {.max_new_tokens = length + 5}, .sampling = {.show_candidates = 3}}};
  options.length.min_new_tokens = length + 5;
  const Continued greedy = continued(tales(), {prompt}, options)[0];
  CHECK(greedy.finish_reason == FinishReason::kLength);
  for (const Token& token : greedy.told) {
    CHECK(token.candidates.size() == 3);
    for (const Candidate& candidate : token.candidates)
      CHECK(candidate.token_id != tales().config().eos_token_id);
  }
  // If the most likely token were kept first, and then masked, none would be left.
  for (const bool by_top_k : {true, false}) {
    options.sampling.do_sample = true;
    options.sampling.top_k = by_top_k ? std::optional(1) : std::nullopt;
    options.sampling.top_p = by_top_k ? std::nullopt : std::optional(0.01f);
    CHECK(continued(tales(), {prompt}, options)[0].ids == greedy.ids);
  }
}

TEST_CASE("the other tokens keep their proportions: each has p / (1 - p of the end of text)") {
  const auto [prompt, ids, length] = ending();
  std::vector<int> text = prompt;
  text.insert(text.end(), ids.begin(), ids.end() - 1);  // the end of text is likely here
  const int vocab_size = tales().config().vocab_size, eos = tales().config().eos_token_id;
  RowOptions options{{.stopping = {.max_new_tokens = 1}, .sampling = {.show_candidates = vocab_size}}};
  const Token plain = continued(tales(), {text}, options)[0].told[0];
  options.length.min_new_tokens = 1;
  const Token later = continued(tales(), {text}, options)[0].told[0];
  std::map<int, double> before;
  for (const Candidate& candidate : plain.candidates) before[candidate.token_id] = candidate.probability;
  REQUIRE(before[eos] > 0.3);
  double sum = 0.0;
  for (const Candidate& candidate : later.candidates) {
    CHECK(candidate.probability == doctest::Approx(before[candidate.token_id] / (1.0 - before[eos])));
    CHECK(candidate.token_id != eos);
    sum += candidate.probability;
  }
  CHECK(sum == doctest::Approx(1.0));
}

TEST_CASE("each text of a queue counts its own tokens") {
  // Five tokens, one of them the end of text: without a minimum length, nearly all end early.
  const TemporaryFolder folder;
  TinyModel(1, 5, 13).write(folder.path());
  Model model = Model::load(folder.path(), make_cpu_device(1));
  const Prompts prompts{{0, 1, 2}, {3}, {1, 1, 0, 2, 3, 3, 1}, {2, 0}};
  int ended_at_once = 0;
  for (const int least : {0, 1, 4, 9, 10}) {
    RowOptions options{{.stopping = {.max_new_tokens = 10}, .sampling = {.do_sample = true, .seed = 3}}};
    options.length.min_new_tokens = least;
    for (const int slots : {3, 4, 12}) {
      const auto together = continued(model, prompts, options, 3, slots);
      for (unsigned i = 0; i < together.size(); ++i) {
        RowOptions own = options;
        own.sampling.seed += i;
        const Continued alone = continued(model, {prompts[i / 3]}, own)[0];
        CHECK(together[i].ids == alone.ids);
        CHECK(together[i].finish_reason == alone.finish_reason);
        const auto end = std::ranges::find(alone.ids, 4);
        CHECK(end - alone.ids.begin() >= least);
        CHECK((end != alone.ids.end()) == (alone.finish_reason == FinishReason::kEos));
        ended_at_once += alone.finish_reason == FinishReason::kEos && std::ssize(alone.ids) == least + 1;
      }
    }
  }
  CHECK(ended_at_once > 10);
}

TEST_CASE("a stop sequence may end a text before the minimum length") {
  RowOptions options{{.stopping = {.max_new_tokens = 30}}};
  options.stop = {{" "}};
  options.length.min_new_tokens = 30;
  const Continued got = continued(tales(), {{321, 1682}}, options)[0];
  CHECK(got.finish_reason == FinishReason::kStop);
  CHECK(got.ids.size() < 10);
}

TEST_CASE(
    "the program keeps the minimum length, reports what it does not keep, and refuses impossible "
    "options") {
  const auto [prompt, ids, length] = ending();
  const std::string text = reference("batch.json")["cases"].back()["prompt"];
  const auto sequence = [&](const std::string& arguments) {
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM, "--json --max-new-tokens 40 --prompt - " + arguments, text);
    REQUIRE(run.status == 0);
    return run.json()["sequences"][0];
  };
  CHECK(sequence("")["token_ids"] == ids);
  CHECK(sequence("")["finish_reason"] == "eos");
  CHECK(sequence("--min-new-tokens 40")["token_ids"].size() == 40);
  CHECK(sequence("--min-new-tokens 40")["finish_reason"] == "length");
  CHECK(sequence("--min-new-tokens 40 --stop ' '")["finish_reason"] == "stop");
  CHECK(contains(run_program(STAIRCASE_STEP_PROGRAM, "--help").out,
                 "minimum number of tokens before the end-of-text token"));
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--min-new-tokens 0 --max-new-tokens 0").status == 0);
  for (const auto& [wrong, message] : std::vector<std::pair<std::string, std::string>>{
           {"--min-new-tokens -1", "--min-new-tokens is -1, but it must be 0 or more\n"},
           {"--min-new-tokens 101",
            "--min-new-tokens is 101, but it must be at most 100, the value of --max-new-tokens\n"},
           {"--min-new-tokens 5 --max-new-tokens 4",
            "--min-new-tokens is 5, but it must be at most 4, the value of --max-new-tokens\n"}}) {
    const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, wrong);
    CAPTURE(refused.err);
    CHECK(refused.status == 2);
    CHECK(ends_with(refused.err, message));
    CHECK(refused.out.empty());
  }
}
