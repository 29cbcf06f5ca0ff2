#include <doctest/doctest.h>

#include <chrono>
#include <set>
#include <thread>

#include "common/text/tokenizer.h"
#include "generate.h"
#include "prompt_lookup.h"
#include "report.h"
#include "tests/captured.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/tiny_model.h"

using namespace staircase;

namespace {

Model& smaller() {
  static Model model = tales().load_beside(find_model("tales-1m"));
  return model;
}

/// Proposes `right` tokens of a known text, each with certainty, and wrong ones after them.
class Prophet : public Drafter {
 public:
  Prophet(std::vector<int> text, int right, int vocab_size)
      : text_(std::move(text)), right_(right), vocab_size_(vocab_size) {}

  Distributions propose(std::vector<int>& text, int count, const SamplingOptions&, std::mt19937&) override {
    Distributions q;
    for (int i = 0; i < count && text.size() < text_.size(); ++i) {
      text.push_back(i < right_ ? text_[text.size()] : (text_[text.size()] + 1) % vocab_size_);
      q.emplace_back(vocab_size_);
      q.back()[text.back()] = 1.0f;
    }
    return q;
  }

 private:
  std::vector<int> text_;
  int right_, vocab_size_;
};

/// The new tokens of a text, and what happened.
struct Run {
  std::vector<int> tokens;
  Speculation counts;
};

Run speculated(Drafter& drafter, const std::vector<int>& prompt, const TextOptions& options, int gamma) {
  Run run;
  run.tokens = tokens_after(
      prompt.size(),
      speculate(tales(), drafter, prompt, options, gamma, run.counts, [](const Token&) {}).tokens);
  return run;
}

/// A prompt of two tokens, and the text that the target alone generates from it.
const std::vector<int> kPrompt{321, 1682};
std::vector<int> plain_text(int count) {
  StaticKvCache cache(tales());
  const TextOptions options{.stopping = {.max_new_tokens = count, .ignore_eos = true}};
  return generate(tales(), {kPrompt}, options, cache, [](int, const Token&) {})[0].tokens;
}

void take_20_ms() {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

/// A random model of a few tokens and positions; `on_pass` is called within each pass, with its number of
/// tokens.
Model tiny(std::function<void(int)> on_pass) {
  const TemporaryFolder folder;
  TinyModel(1, 5, 37).write(folder.path());
  Model model = Model::load(folder.path(), make_cpu_device(1));
  model.on_stage(
      [on_pass, width = model.config().n_embd](std::string_view name, std::span<const float> values) {
        if (name == "embeddings") on_pass(static_cast<int>(values.size()) / width);
      });
  return model;
}

/// The time of the rounds of a tiny target that generates ten tokens, two of them drafted at a time.
std::vector<Round> rounds_of(Model target, Drafter& drafter) {
  Speculation counts;
  const TextOptions options{.stopping = {.max_new_tokens = 10, .ignore_eos = true}};
  speculate(target, drafter, {0, 1, 2}, options, 2, counts, [](const Token&) {});
  REQUIRE(counts.typical.size() >= 3);
  return counts.typical;
}

/// The shortest time of all rounds: the machine may have been busy in the others.
double shortest(const std::vector<Round>& rounds, double Round::*time) {
  return (*std::ranges::min_element(rounds, {}, time)).*time;
}

}  // namespace

TEST_CASE("the expected speed-up equals the paper's") {
  CHECK(expected_speedup(0.0, 4, 0.0) == doctest::Approx(1.0));
  CHECK(expected_speedup(1.0, 4, 0.0) == doctest::Approx(5.0));
  CHECK(expected_speedup(0.8, 5, 0.05) == doctest::Approx(3.68928 / 1.25));
}

TEST_CASE("each round after the first is kept, and with it they are all that happened") {
  Prophet prophet(plain_text(120), 2, tales().config().vocab_size);
  const TextOptions options{.stopping = {.max_new_tokens = 30, .ignore_eos = true}};
  const Speculation counts = speculated(prophet, kPrompt, options, 4).counts;
  // Four are drafted, two of them right: each round yields three tokens. At the end there is room for two.
  CHECK(counts.rounds == 10);
  CHECK(counts.drafted == 9 * 4 + 2);
  CHECK(counts.accepted == 10 * 2);
  REQUIRE(counts.typical.size() == 9);
  for (int i = 0; i < 9; ++i) {
    CHECK(counts.typical[i].drafted == (i < 8 ? 4 : 2));
    CHECK(counts.typical[i].accepted == 2);
  }
}

TEST_CASE("a slow drafter shows in the time of proposing, a slow target in the time of verifying") {
  struct Slow : Prophet {
    using Prophet::Prophet;
    Distributions propose(std::vector<int>& text, int count, const SamplingOptions& options,
                          std::mt19937& generator) override {
      take_20_ms();
      return Prophet::propose(text, count, options, generator);
    }
  };
  const std::vector<int> text(100, 1);
  Slow slow(text, 100, 5);
  const auto drafting = rounds_of(tiny([](int) {}), slow);
  CHECK(shortest(drafting, &Round::draft_ms) >= 20.0);
  CHECK(shortest(drafting, &Round::target_ms) < 20.0);
  Prophet prophet(text, 100, 5);
  const auto verifying = rounds_of(tiny([](int) { take_20_ms(); }), prophet);
  CHECK(shortest(verifying, &Round::draft_ms) < 20.0);
  CHECK(shortest(verifying, &Round::target_ms) >= 20.0);
}

TEST_CASE("each round accepts as many tokens as Hugging Face's models agree on") {
  DraftModel drafter(smaller());
  for (const auto& run : reference("speculative.json")["cases"]) {
    CAPTURE(run["name"]);
    const Run got = speculated(drafter, run["prompt_ids"], {.stopping = {.max_new_tokens = 64}}, 4);
    CHECK(got.tokens == run["ids"].get<std::vector<int>>());
    const std::vector<int> want = run["accepted"];
    REQUIRE(got.counts.typical.size() >= want.size() - 2);
    for (std::size_t round = 1; round + 1 < want.size(); ++round)
      CHECK(got.counts.typical[round - 1].accepted == want[round]);
  }
}

TEST_CASE("measuring changes no text, with a draft model and a look-up") {
  DraftModel model(smaller());
  PromptLookup lookup(2, tales().config().vocab_size);
  for (Drafter* drafter : std::initializer_list<Drafter*>{&model, &lookup}) {
    CHECK(difference_from_greedy([&](const std::vector<int>& prompt, int count) {
            return speculated(*drafter, prompt, {.stopping = {.max_new_tokens = count}}, 4).tokens;
          }) == "");
  }
}

TEST_CASE("drafting and verifying are measured separately" * doctest::skip(kSanitized)) {
  /// Proposes two tokens, slowly.
  struct Slow : Prophet {
    using Prophet::Prophet;
    Distributions propose(std::vector<int>& text, int count, const SamplingOptions& options,
                          std::mt19937& generator) override {
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
      return Prophet::propose(text, count, options, generator);
    }
  };
  Slow slow(plain_text(20), 1, tales().config().vocab_size);
  const TextOptions options{.stopping = {.max_new_tokens = 12, .ignore_eos = true}};
  const std::vector<Round> rounds = speculated(slow, kPrompt, options, 2).counts.typical;
  CHECK(rounds.size() == 5);
  std::size_t quick = 0;  // other programs may interrupt one
  for (const Round& round : rounds) {
    CHECK(round.draft_ms >= 60.0);
    if (round.target_ms < 60.0) ++quick;
  }
  CHECK(quick > rounds.size() / 2);
}

TEST_CASE("costs leave out the round with the prefill, and those after the end of the context") {
  Prophet prophet(plain_text(120), 1, tales().config().vocab_size);
  const TextOptions options{.stopping = {.max_new_tokens = 30, .ignore_eos = true}};
  const Speculation counts = speculated(prophet, kPrompt, options, 2).counts;
  CHECK(static_cast<int>(counts.typical.size()) == counts.rounds - 1);
  std::size_t cheap = 0;  // other programs may interrupt one
  for (const Round& round : counts.typical) {
    CHECK(round.target_ms > 0.0);
    CHECK(round.draft_ms >= 0.0);
    if (round.draft_ms < round.target_ms) ++cheap;
  }
  CHECK(cheap > counts.typical.size() / 2);

  std::vector<int> text = reference("sliding.json")["prompt_ids"], rest = reference("sliding.json")["ids"];
  text.insert(text.end(), rest.begin(), rest.end());
  text.resize(tales().config().n_positions - 3);
  PromptLookup lookup(2, tales().config().vocab_size);
  const TextOptions longer{.stopping = {.max_new_tokens = 12, .ignore_eos = true}};
  const Speculation beyond = speculated(lookup, text, longer, 4).counts;
  CHECK(beyond.rounds >= 9);
  CHECK(beyond.typical.size() <= 2);
}

TEST_CASE("a token of the target alone takes a time, at any length of the text") {
  for (const int length : {1, 2, 3, 100, 600}) {
    CAPTURE(length);
    CHECK(plain_ms(tales(), std::vector<int>(length, 321), {}) > 0.0);
  }
}

TEST_CASE("a token of the target alone is timed in the middle of a text, without the tokens before it") {
  const std::vector<int> text(20, 1);
  Model slow = tiny([](int) { take_20_ms(); });
  CHECK(plain_ms(slow, text, {}) >= 20.0);
  std::vector<int> passes;  // tokens in each
  Model slow_at_first = tiny([&](int tokens) {
    passes.push_back(tokens);
    if (tokens > 1) take_20_ms();
  });
  CHECK(plain_ms(slow_at_first, text, {}) < 20.0);
  REQUIRE(passes.size() >= 10);
  CHECK(passes[0] == 10);
  CHECK(std::ranges::count(passes, 1) == std::ssize(passes) - 1);
}

TEST_CASE("the report is computed from the counts: rates of all rounds, costs of the typical ones") {
  const Tokenizer tokenizer = Tokenizer::load(find_model("tales-6m"));
  Output output(tokenizer, 4095, {{1}}, Output::Form::kJson);
  Speculation counts{.rounds = 5, .drafted = 20, .accepted = 10};
  // 6 of 12 are accepted, 2 rejected, 4 after those; γ is 4, α is 6 / 8, c is 0.5 / 2.
  counts.typical = {{4, 4, 2.0, 3.0}, {4, 1, 2.0, 3.0}, {4, 1, 2.0, 3.0}};
  std::string text, lines;
  {
    const Captured captured(stdout), told(stderr);
    report(counts, 2.0, output);
    output.close(0);
    text = captured.text();
    lines = told.text();
  }
  CHECK(lines ==
        "\n10 of 20 drafted tokens accepted (50 %), 3.00 tokens per pass of the target\n"
        "a draft token takes 0.25 of the target's, a pass that verifies 1.50; speed-up 1.20, by the formula "
        "1.53\n");
  auto stats = nlohmann::json::parse(text)["stats"];
  CHECK(stats["acceptance_rate"] == 0.5);
  CHECK(stats["tokens_per_target_pass"] == 3.0);
  CHECK(stats["draft_cost"] == doctest::Approx(0.25));
  CHECK(stats["verification_cost"] == doctest::Approx(1.5));
  CHECK(stats["speedup"] == doctest::Approx(9 * 2.0 / 15.0));
  CHECK(stats["expected_speedup"] == doctest::Approx((1.0 - std::pow(0.75, 5)) / 0.25 / 2.0));
}

TEST_CASE("the look-up of the program matches n-grams of the length that was chosen") {
  const std::string animals = "A fox ate a goose. A wolf ate a sheep. ", text = animals + animals + "A fox";
  const TextOptions options{.stopping = {.max_new_tokens = 60, .ignore_eos = true}};
  std::set<std::string> reports;
  for (const int length : {1, 2, 3}) {
    CAPTURE(length);
    Speculation counts;
    PromptLookup lookup(length, tales().config().vocab_size);
    speculate(tales(), lookup, tales_tokenizer().encode(text), options, 5, counts, [](const Token&) {});
    const std::string report =
        fmt::format("{} of {} drafted tokens accepted", counts.accepted, counts.drafted);
    CHECK(contains(run_program(STAIRCASE_STEP_PROGRAM,
                               fmt::format("--max-new-tokens 60 --ignore-eos --prompt-lookup-num-tokens 5 "
                                           "--max-matching-ngram-size {} --prompt '{}'",
                                           length, text))
                       .err,
                   report));
    reports.insert(report);
  }
  CHECK(reports.size() > 1);
}

TEST_CASE("the program prints how well it went") {
  const std::string prompt =
      "--json --max-new-tokens 40 --ignore-eos --prompt 'the king and the king and the king'";
  const auto sequences = run_program(STAIRCASE_STEP_PROGRAM, prompt).json()["sequences"];
  for (const char* drafter : {"--draft-model tales-1m", "--prompt-lookup-num-tokens 5"}) {
    CAPTURE(drafter);
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, prompt + " " + drafter);
    REQUIRE(run.status == 0);
    const auto json = run.json();
    CHECK(json["sequences"] == sequences);
    for (const char* name : {"acceptance_rate", "tokens_per_target_pass", "draft_cost", "verification_cost",
                             "speedup", "expected_speedup"}) {
      CAPTURE(name);
      CHECK(json["stats"].contains(name));
    }
    CHECK(json["stats"]["tokens_per_target_pass"] > 1.0);
    CHECK(contains(run.err, "drafted tokens accepted"));
    CHECK(contains(run.err, "a draft token takes"));
  }
  CHECK(contains(run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 1 --prompt-lookup-num-tokens 5").err,
                 "no token was drafted"));
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 0 --draft-model tales-1m").status == 0);
  // All new tokens belong to the first round, so there is nothing to report about costs.
  const ProgramRun one = run_program(STAIRCASE_STEP_PROGRAM,
                                     "--max-new-tokens 2 --ignore-eos --draft-model tales-6m --prompt The");
  CHECK(one.status == 0);
  CHECK(contains(one.err, "1 of 1 drafted tokens accepted"));
  CHECK(one.err.find("a draft token takes") == std::string::npos);
}

TEST_CASE("impossible numbers and combinations are refused before any token") {
  const std::pair<std::string, std::string> wrong[] = {
      {"--num-speculative-tokens 0", "--num-speculative-tokens is 0, but it must be between 1 and 16"},
      {"--num-speculative-tokens 17", "--num-speculative-tokens is 17, but it must be between 1 and 16"},
      {"--num-speculative-tokens many",
       "--num-speculative-tokens is many, but it must be a whole number between 1 and 16"},
      {"--draft-model tales-1m --no-use-cache", "with the cache and one text"},
      {"--draft-model tales-1m --prompt A --prompt B", "with the cache and one text"},
      {"--draft-model tales-1m --prompt-lookup-num-tokens 5",
       "use either --draft-model or --prompt-lookup-num-tokens"},
  };
  for (const auto& [arguments, message] : wrong) {
    const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, arguments);
    CAPTURE(refused.err);
    CHECK(refused.status == 2);
    CHECK(refused.out.empty());
    CHECK(contains(refused.err, message));
  }
}
