#include <doctest/doctest.h>

#include <chrono>
#include <set>
#include <thread>

#include "generate.h"
#include "prompt_lookup.h"
#include "tests/chi_square.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/tiny_model.h"

using namespace staircase;

namespace {

/// The softmax of the processed logits after `tokens`, [vocab_size].
std::vector<float> next_distribution(Model& model, const std::vector<int>& tokens,
                                     const SamplingOptions& options) {
  std::vector<float> logits = copy_of(model.next_logits(tokens));
  process(logits, tokens, options);
  return softmax(logits);
}

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

Run speculated(Drafter& drafter, const std::vector<int>& prompt, const TextOptions& options,
               std::optional<int> gamma) {
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

/// How many tokens were proposed in each round after the first one.
std::vector<int> gammas(int right, std::optional<int> gamma, int count) {
  Prophet prophet(plain_text(count + 100), right, tales().config().vocab_size);
  const TextOptions options{.stopping = {.max_new_tokens = count, .ignore_eos = true}};
  std::vector<int> drafted;
  for (const Round& round : speculated(prophet, kPrompt, options, gamma).counts.typical)
    drafted.push_back(round.drafted);
  return drafted;
}

std::vector<int> first(std::vector<int> values, std::size_t count) {
  REQUIRE(values.size() >= count);
  values.resize(count);
  return values;
}

}  // namespace

TEST_CASE("the number of drafted tokens grows by two when all are accepted, and shrinks by one otherwise") {
  CHECK(first(gammas(100, std::nullopt, 110), 7) == std::vector<int>{7, 9, 11, 13, 15, 16, 16});
  CHECK(first(gammas(0, std::nullopt, 20), 6) == std::vector<int>{4, 3, 2, 1, 1, 1});
  // With four right drafts, the number falls from 5 to 4, rises to 6, and falls to 4 again.
  CHECK(first(gammas(4, std::nullopt, 60), 7) == std::vector<int>{4, 6, 5, 4, 6, 5, 4});
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

TEST_CASE("a fixed number stays") {
  CHECK(first(gammas(100, 3, 40), 6) == std::vector<int>(6, 3));
  CHECK(first(gammas(0, 3, 20), 6) == std::vector<int>(6, 3));
}

TEST_CASE("a round without proposals changes nothing") {
  /// Proposes nothing in every second round.
  struct Hesitant : Prophet {
    using Prophet::Prophet;
    Distributions propose(std::vector<int>& text, int count, const SamplingOptions& options,
                          std::mt19937& generator) override {
      return calls++ % 2 == 1 ? Distributions() : Prophet::propose(text, count, options, generator);
    }
    int calls = 0;
  };
  Hesitant hesitant(plain_text(100), 100, tales().config().vocab_size);
  const TextOptions options{.stopping = {.max_new_tokens = 60, .ignore_eos = true}};
  std::vector<int> drafted;
  for (const Round& round : speculated(hesitant, kPrompt, options, std::nullopt).counts.typical)
    drafted.push_back(round.drafted);
  CHECK(first(drafted, 7) == std::vector<int>{0, 7, 0, 9, 0, 11, 0});
}

TEST_CASE("only whether all proposed tokens were accepted counts, even if more were requested") {
  /// Proposes at most three tokens, and records how many were requested.
  struct Terse : Prophet {
    using Prophet::Prophet;
    Distributions propose(std::vector<int>& text, int count, const SamplingOptions& options,
                          std::mt19937& generator) override {
      asked.push_back(count);
      return Prophet::propose(text, std::min(count, 3), options, generator);
    }
    std::vector<int> asked;
  };
  Terse terse(plain_text(100), 100, tales().config().vocab_size);
  speculated(terse, kPrompt, {.stopping = {.max_new_tokens = 60, .ignore_eos = true}}, std::nullopt);
  CHECK(first(terse.asked, 6) == std::vector<int>{5, 7, 9, 11, 13, 15});
}

TEST_CASE(
    "greedy speculation that adapts is the target's greedy decoding, with a draft model and a look-up") {
  DraftModel model(smaller());
  PromptLookup lookup(2, tales().config().vocab_size);
  for (Drafter* drafter : std::initializer_list<Drafter*>{&model, &lookup}) {
    CHECK(difference_from_greedy([&](const std::vector<int>& prompt, int count) {
            return speculated(*drafter, prompt, {.stopping = {.max_new_tokens = count}}, std::nullopt).tokens;
          }) == "");
  }
}

TEST_CASE("a draft that adapts gives the target's distribution") {
  const auto tiny = [](std::uint32_t seed) {
    const TemporaryFolder folder;
    TinyModel(seed, 5, 37).write(folder.path());
    return Model::load(folder.path(), make_cpu_device(1));
  };
  Model target = tiny(1), proposer = tiny(2);
  DraftModel drafter(proposer);
  TextOptions options{.stopping = {.max_new_tokens = 12, .ignore_eos = true},
                      .sampling = {.do_sample = true, .temperature = 2.0f, .top_p = 0.97f}};
  // Three tokens are from one, two or three rounds, with 5 drafted tokens and then 7, 4 or 3.
  const std::vector<int> prompt{3, 1};
  std::vector<int> counts(125);
  std::vector<float> chances;
  for (int i = 0; i < 125; ++i) {
    std::vector<int> tokens = prompt;
    double chance = 1.0;
    for (const int token : {i / 25, i / 5 % 5, i % 5}) {
      chance *= next_distribution(target, tokens, options.sampling)[token];
      tokens.push_back(token);
    }
    chances.push_back(static_cast<float>(chance));
  }
  std::mt19937 generator(1);
  for (int i = 0; i < (kSanitized ? 1000 : 8000); ++i) {
    options.sampling.seed = generator();
    Speculation ignored;
    const auto tokens =
        speculate(target, drafter, prompt, options, std::nullopt, ignored, [](const Token&) {}).tokens;
    ++counts[tokens[2] * 25 + tokens[3] * 5 + tokens[4]];
  }
  CHECK(p_value(counts, chances) > 0.01);
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

TEST_CASE("the program takes auto, for the draft model only") {
  const std::string prompt =
      "--json --max-new-tokens 40 --ignore-eos --prompt 'the king and the king and the king'";
  const auto sequences = run_program(STAIRCASE_STEP_PROGRAM, prompt).json()["sequences"];
  std::vector<std::string> accepted;  // "23 of 40 drafted tokens accepted", without and with auto
  for (const char* drafter : {"--draft-model tales-1m", "--prompt-lookup-num-tokens 5"}) {
    for (const char* gamma : {"", "--num-speculative-tokens auto"}) {
      CAPTURE(drafter);
      CAPTURE(gamma);
      const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, prompt + " " + drafter + " " + gamma);
      REQUIRE(run.status == 0);
      const auto json = run.json();
      CHECK(json["sequences"] == sequences);
      for (const char* name : {"acceptance_rate", "tokens_per_target_pass", "draft_cost", "verification_cost",
                               "speedup", "expected_speedup"}) {
        CAPTURE(name);
        CHECK(json["stats"].contains(name));
      }
      CHECK(json["stats"]["tokens_per_target_pass"] > 1.0);
      const std::size_t end = run.err.find(" drafted tokens accepted");
      REQUIRE(end != std::string::npos);
      accepted.push_back(run.err.substr(0, end).substr(run.err.substr(0, end).rfind('\n') + 1));
    }
  }
  CHECK(accepted[0] != accepted[1]);
  CHECK(accepted[2] == accepted[3]);
}

TEST_CASE("impossible numbers and combinations are refused before any token") {
  const std::pair<std::string, std::string> wrong[] = {
      {"--num-speculative-tokens 0",
       "--num-speculative-tokens is 0, but it must be between 1 and 16, or auto"},
      {"--num-speculative-tokens 17",
       "--num-speculative-tokens is 17, but it must be between 1 and 16, or auto"},
      {"--num-speculative-tokens many",
       "--num-speculative-tokens is many, but it must be a whole number between 1 and 16, or auto"},
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
