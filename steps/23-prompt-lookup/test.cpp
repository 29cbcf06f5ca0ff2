#include <doctest/doctest.h>

#include "prompt_lookup.h"
#include "tests/chi_square.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/tiny_model.h"

using namespace staircase;

namespace {

constexpr int kVocabulary = 5;  // of the small models

/// A random model of a few tokens and positions.
Gpt2 tiny(std::uint32_t seed, int n_positions = 37) {
  const TemporaryFolder folder;
  TinyModel(seed, kVocabulary, n_positions).write(folder.path());
  return Gpt2::load(folder.path(), make_cpu_device(1));
}

/// Proposes nothing of its own: the tokens of a text that it knows, each said to be certain.
class Prophet : public Drafter {
 public:
  Prophet(std::vector<int> text, int vocab_size) : text_(std::move(text)), vocab_size_(vocab_size) {}

  std::vector<std::vector<float>> propose(std::vector<int>& text, int count, const Next&,
                                          std::mt19937&) override {
    std::vector<std::vector<float>> q;
    for (; count > 0 && text.size() < text_.size(); --count) {
      text.push_back(text_[text.size()]);
      q.emplace_back(vocab_size_);
      q.back()[text.back()] = 1.0f;
    }
    return q;
  }

 private:
  std::vector<int> text_;
  int vocab_size_;
};

struct Run {
  Generation generation;
  Speculation speculation;
  std::string text;  ///< as it is shown
  std::map<Origin, int> origins;
};

const Tokenizer& tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(find_model("tales-6m"));
  return tokenizer;
}

std::string shown(const Token& token) {
  return token.text.value_or(std::string(tokenizer().bytes(token.id)));
}

Run speculated(Gpt2& target, Drafter& drafter, const std::vector<int>& prompt,
               const GenerateOptions& options) {
  Run run;
  run.generation = speculate(target, drafter, prompt, options, run.speculation, [&](const Token& token) {
    run.text += shown(token);
    ++run.origins[token.origin];
  });
  return run;
}

/// tales-6m, which looks up.
Run looked_up(const std::vector<int>& prompt, const GenerateOptions& options) {
  PromptLookup drafter(options.max_matching_ngram_size, tales().config().vocab_size);
  return speculated(tales(), drafter, prompt, options);
}

Run plain(const std::vector<int>& prompt, const GenerateOptions& options) {
  Run run;
  StaticKvCache cache(tales(), 1);
  run.generation = generate(tales(), {&prompt, 1}, options, &cache,
                            [&](int, const Token& token) { run.text += shown(token); })[0];
  return run;
}

/// Every earlier place, tried one after the other.
std::optional<int> naive_look_up(const std::vector<int>& text, int longest) {
  std::optional<int> best;
  int most = 0;
  for (int place = 1; place < std::ssize(text); ++place) {
    int equal = 0;
    while (equal < longest && equal < place && text[place - 1 - equal] == text[text.size() - 1 - equal])
      ++equal;
    if (equal == 0 || equal < most) continue;
    most = equal;
    best = place;
  }
  return best;
}

/// What is proposed behind `text`.
std::vector<int> proposed(std::vector<int> text, int longest, int count) {
  const std::size_t length = text.size();
  std::mt19937 generator;
  const auto q = PromptLookup(longest, 9).propose(text, count, {}, generator);
  REQUIRE(q.size() == text.size() - length);
  for (std::size_t i = 0; i < q.size(); ++i) {
    CHECK(q[i].size() == 9);
    CHECK(q[i][text[length + i]] == 1.0f);
    CHECK(std::ranges::count(q[i], 0.0f) == 8);
  }
  return behind(length, text);
}

/// The p-value of the three tokens behind `prompt` that `text(generator)` gives, if `chances(text)` are the
/// probabilities of the next.
template <typename Text, typename Chances>
double p_value_of_texts(int draws, const std::vector<int>& prompt, const Text& text, const Chances& chances) {
  constexpr int kV = kVocabulary;
  std::vector<int> counts(kV * kV * kV);
  std::vector<float> expected;
  for (int i = 0; i < kV * kV * kV; ++i) {
    std::vector<int> tokens = prompt;
    double chance = 1.0;
    for (const int token : {i / kV / kV, i / kV % kV, i % kV}) {
      chance *= chances(tokens)[token];
      tokens.push_back(token);
    }
    expected.push_back(static_cast<float>(chance));
  }
  std::mt19937 generator(1);
  for (int i = 0; i < draws; ++i) {
    const std::vector<int> tokens = behind(prompt.size(), text(generator));
    ++counts[(tokens[0] * kV + tokens[1]) * kV + tokens[2]];
  }
  return p_value(counts, expected);
}

/// A "model" that is a table: the probabilities of the token behind a text.
std::vector<float> table(std::span<const int> text) {
  unsigned seed = 1;
  for (const int token : text) seed = seed * 6 + token + 1;
  std::mt19937 generator(seed);
  std::vector<float> probabilities(kVocabulary);
  float sum = 0.0f;
  for (float& probability : probabilities)
    sum += probability = static_cast<float>(std::pow(uniform(generator), 2));
  for (float& probability : probabilities) probability /= sum;
  return probabilities;
}

/// The p-value of a rule of verification, when two tokens a round are looked up.
template <typename Rule>
double p_value_of_rule(const Rule& rule) {
  const std::vector<int> prompt{0, 1, 2, 3, 4, 0, 1};
  return p_value_of_texts(
      50000, prompt,
      [&](std::mt19937& generator) {
        std::vector<int> text = prompt;
        PromptLookup drafter(2, kVocabulary);
        while (text.size() < prompt.size() + 3) {
          std::vector<int> longer = text;
          const auto q = drafter.propose(longer, 2, {}, generator);
          std::vector<std::vector<float>> p;
          for (std::size_t length = text.size(); length <= longer.size(); ++length) {
            p.push_back(table(std::span(longer).first(length)));
          }
          const std::span<const int> drafted = std::span(longer).subspan(text.size());
          const Verdict verdict = rule(drafted, q, p, generator);
          text.insert(text.end(), drafted.begin(), drafted.begin() + verdict.accepted);
          text.push_back(verdict.next);
        }
        return text;
      },
      table);
}

using Drafted = std::span<const int>;
using Distributions = std::span<const std::vector<float>>;

}  // namespace

TEST_CASE("the look-up finds what a naive search finds") {
  std::mt19937 generator(1);
  int found = 0;
  for (int round = 0; round < 5000; ++round) {
    std::vector<int> text;
    const unsigned tokens = 1 + generator() % 8;
    for (unsigned length = 1 + generator() % 30; length > 0; --length)
      text.push_back(static_cast<int>(generator() % tokens));
    const int longest = static_cast<int>(1 + generator() % 5);
    CAPTURE(text);
    CAPTURE(longest);
    const std::optional<int> place = look_up(text, longest);
    CHECK(place == naive_look_up(text, longest));
    found += place.has_value();
  }
  CHECK(found > 3000);
  CHECK(found < 5000);
}

TEST_CASE("the longest match counts, and of equal ones the latest") {
  CHECK(proposed({1, 2, 3, 5, 2, 4, 1, 2}, 2, 2) == std::vector<int>{3, 5});
  CHECK(proposed({1, 2, 3, 5, 2, 4, 1, 2}, 1, 2) == std::vector<int>{4, 1});
  CHECK(proposed({1, 2, 3, 1, 2, 4, 1, 2}, 2, 2) == std::vector<int>{4, 1});
  CHECK(proposed({1, 2, 3}, 3, 2).empty());
  CHECK(proposed({1}, 3, 2).empty());
  CHECK(proposed({1, 1}, 3, 0).empty());
}

TEST_CASE("what repeats goes on repeating, beyond the end of the text") {
  CHECK(proposed({5, 5}, 2, 4) == std::vector<int>{5, 5, 5, 5});
  CHECK(proposed({1, 2, 3, 1, 2}, 2, 7) == std::vector<int>{3, 1, 2, 3, 1, 2, 3});
}

TEST_CASE(
    "greedy decoding with the look-up gives the same text, for every number of tokens and every length") {
  for (const auto& run : reference("greedy.json")["cases"]) {
    const std::vector<int> prompt = run["prompt_ids"], want = run["ids"];
    for (const int gamma : {1, 3, 10, 64}) {
      for (const int longest : {1, 2, 3}) {
        CAPTURE(run["name"]);
        CAPTURE(gamma);
        CAPTURE(longest);
        const Run got = looked_up(
            prompt,
            {.max_new_tokens = 64, .num_speculative_tokens = gamma, .max_matching_ngram_size = longest});
        CHECK(first_difference(behind(prompt.size(), got.generation.tokens), want, run["gaps"]) == -1);
      }
    }
  }
}

TEST_CASE("a text that repeats itself takes few passes") {
  const std::vector<int> prompt = tokenizer().encode(
      "I am a cat.\nI am a cat.\nI am a cat.\nI am a cat.\nI am a cat.\nI am a cat.\nI am a");
  const GenerateOptions options{.max_new_tokens = 40, .num_speculative_tokens = 10};
  const Run got = looked_up(prompt, options);
  CHECK(got.generation.tokens == plain(prompt, options).generation.tokens);
  CHECK(got.speculation.tokens == 40);
  CHECK(got.speculation.rounds < 20);
}

TEST_CASE("a proposal may be shorter than asked for, or empty") {
  const std::vector<int> prompt = reference("greedy.json")["cases"][0]["prompt_ids"];
  GenerateOptions options{.max_new_tokens = 20, .num_speculative_tokens = 4};
  const std::vector<int> want = plain(prompt, options).generation.tokens;
  // It knows the next six tokens and then no more.
  Prophet prophet({want.begin(), want.begin() + static_cast<int>(prompt.size()) + 6},
                  tales().config().vocab_size);
  const Run got = speculated(tales(), prophet, prompt, options);
  CHECK(got.generation.tokens == want);
  CHECK(got.speculation.drafted == 4 + 1);
  CHECK(got.speculation.accepted == 4 + 1);
  CHECK(got.speculation.rounds == 1 + 1 + 13);
  CHECK(got.origins ==
        std::map<Origin, int>{{Origin::kAccepted, 4 + 1}, {Origin::kBonus, 1 + 1}, {Origin::kModel, 13}});
}

TEST_CASE("the rule of verification gives the target's distribution when the look-up proposes") {
  CHECK(p_value_of_rule(verify) > 0.01);
}

TEST_CASE("a broken rule gives another one, and the test notices") {
  // Accepts everything.
  CHECK(p_value_of_rule([](Drafted drafted, Distributions, Distributions p, std::mt19937& generator) {
          return Verdict{static_cast<int>(drafted.size()), draw(p.back(), generator)};
        }) < 1e-6);
  // Draws from p in the place of a rejected token, which may come again.
  CHECK(p_value_of_rule([](Drafted drafted, Distributions q, Distributions p, std::mt19937& generator) {
          const Verdict verdict = verify(drafted, q, p, generator);
          return Verdict{verdict.accepted, draw(p[verdict.accepted], generator)};
        }) < 1e-6);
  // Takes the proposal for a draw from all tokens, each as likely as the others.
  CHECK(p_value_of_rule([](Drafted drafted, Distributions q, Distributions p, std::mt19937& generator) {
          const std::vector<std::vector<float>> equal(q.size(),
                                                      std::vector<float>(kVocabulary, 1.0f / kVocabulary));
          return verify(drafted, equal, p, generator);
        }) < 1e-6);
  // Accepts what the target finds likely enough.
  CHECK(p_value_of_rule([](Drafted drafted, Distributions q, Distributions p, std::mt19937& generator) {
          for (int i = 0; i < std::ssize(drafted); ++i) {
            if (p[i][drafted[i]] < 0.3f) return Verdict{i, draw(residual(p[i], q[i]), generator)};
          }
          return Verdict{static_cast<int>(drafted.size()), draw(p.back(), generator)};
        }) < 1e-6);
}

TEST_CASE("the first three tokens are distributed as the target's own, with every option on") {
  Gpt2 target = tiny(2);
  GenerateOptions options{.max_new_tokens = 5, .ignore_eos = true};
  options.sampling = {.do_sample = true,
                      .presence_penalty = 0.5f,
                      .frequency_penalty = 0.25f,
                      .repetition_penalty = 1.2f,
                      .temperature = 2.0f,
                      .top_k = 4,
                      .top_p = 0.97f};
  const std::vector<int> prompt{0, 1, 2, 3, 4, 0, 1};
  PromptLookup drafter(2, kVocabulary);
  for (const int gamma : {1, 2, 3}) {
    options.num_speculative_tokens = gamma;
    int all_accepted = 0;
    const double p = p_value_of_texts(
        kSanitized ? 1000 : 8000, prompt,
        [&](std::mt19937& generator) {
          options.seed = generator();
          const std::vector<int> tokens = speculated(target, drafter, prompt, options).generation.tokens;
          all_accepted += std::ranges::equal(std::span(tokens).subspan(prompt.size(), gamma),
                                             std::span(prompt).subspan(2, gamma));
          return tokens;
        },
        [&](const std::vector<int>& text) {
          return distribution(target.next_logits(text), text, options.sampling);
        });
    CAPTURE(gamma);
    CHECK(p > 0.01);
    CHECK(all_accepted > 0);
  }
}

TEST_CASE("stop sequences, the least number of tokens and the end of text act as without the look-up") {
  const std::vector<int> prompt = tokenizer().encode("The fox and the crow and the fox and the");
  const std::string text = plain(prompt, {.max_new_tokens = 40}).text;
  const auto& ending = reference("speculative.json")["cases"].back();
  REQUIRE(ending["finish"] == "eos");
  const int length = static_cast<int>(ending["ids"].size());
  std::vector<std::pair<std::vector<int>, GenerateOptions>> cases;
  for (const std::size_t first : {std::size_t{5}, std::size_t{30}, text.size() - 6}) {
    GenerateOptions options{.max_new_tokens = 40};
    options.stop = {{text.substr(first, 5)}, &tokenizer()};
    cases.emplace_back(prompt, options);
  }
  for (const int least : {0, length, length + 5}) {
    cases.emplace_back(ending["prompt_ids"].get<std::vector<int>>(),
                       GenerateOptions{.max_new_tokens = length + 20, .min_new_tokens = least});
  }
  for (auto& [tokens, options] : cases) {
    const Run want = plain(tokens, options);
    for (const int gamma : {1, 4, 16}) {
      options.num_speculative_tokens = gamma;
      const Run got = looked_up(tokens, options);
      CHECK(got.text == want.text);
      CHECK(got.generation.tokens == want.generation.tokens);
      CHECK(got.generation.finish_reason == want.generation.finish_reason);
    }
  }
}

TEST_CASE("the end of text is refused before the least number of tokens, even when it is proposed") {
  const int eos = tales().config().eos_token_id;
  const std::vector<int> prompt{eos, 321, 1682, eos, 321, 1682};
  for (const bool do_sample : {false, true}) {
    GenerateOptions options{.max_new_tokens = 12, .min_new_tokens = 12, .num_speculative_tokens = 8};
    options.sampling.do_sample = do_sample;
    const Run got = looked_up(prompt, options);
    CHECK(got.generation.tokens.size() == prompt.size() + 12);
    CHECK(std::ranges::count(got.generation.tokens, eos) == 2);
  }
}

TEST_CASE("at the end of its context the target goes on alone") {
  Gpt2 target = tiny(1);
  const GenerateOptions options{
      .max_new_tokens = 50, .ignore_eos = true, .on_overflow = Overflow::kRecompute};
  for (const int length : {1, 2, 36, 37, 38, 60}) {
    std::vector<int> prompt;
    for (int i = 0; i < length; ++i) prompt.push_back(i * i % kVocabulary);
    CAPTURE(length);
    std::vector<int> want = prompt;
    for (int i = 0; i < 50; ++i) {
      want.push_back(argmax(
          target.next_logits(std::span<const int>(want).last(std::min<std::size_t>(want.size(), 37)))));
    }
    PromptLookup drafter(2, kVocabulary);
    Speculation speculation;
    const Generation got = speculate(target, drafter, prompt, options, speculation, [](const Token&) {});
    CHECK(got.tokens == want);
    CHECK((speculation.drafted > 0) == (length < 37));
  }
}

TEST_CASE("a draft model proposes as before: each round accepts what Hugging Face's models agree on") {
  Gpt2 smaller = tales().load_beside(find_model("tales-1m"));
  DraftModel drafter(smaller);
  for (const auto& run : reference("speculative.json")["cases"]) {
    CAPTURE(run["name"]);
    const std::vector<int> prompt = run["prompt_ids"], want = run["accepted"];
    std::vector<int> accepted{0};
    Speculation speculation;
    const Generation got =
        speculate(tales(), drafter, prompt, {.max_new_tokens = 64}, speculation, [&](const Token& token) {
          if (token.origin == Origin::kAccepted) {
            ++accepted.back();
          } else {
            accepted.push_back(0);
          }
        });
    CHECK(behind(prompt.size(), got.tokens) == run["ids"].get<std::vector<int>>());
    // Where the text ends within a round, the reference drafts on, and this step does not.
    REQUIRE(accepted.size() >= want.size());
    for (std::size_t round = 0; round + 1 < want.size(); ++round) CHECK(accepted[round] == want[round]);
  }
}

TEST_CASE("one draft model serves several texts, one after the other") {
  Gpt2 target = tiny(1), smaller = tiny(2, 13);
  DraftModel used(smaller);
  const GenerateOptions options{.max_new_tokens = 8, .ignore_eos = true};
  for (const std::vector<int>& prompt : {std::vector<int>{1, 2, 3, 4, 0, 1}, {3}, {0, 4}}) {
    DraftModel fresh(smaller);
    const Run want = speculated(target, fresh, prompt, options);
    const Run got = speculated(target, used, prompt, options);
    CHECK(got.generation.tokens == want.generation.tokens);
    CHECK(got.speculation.accepted == want.speculation.accepted);
    CHECK(got.speculation.rounds == want.speculation.rounds);
  }
}

TEST_CASE("the program tells how well it went, and refuses what cannot be") {
  const std::string prompt = "--json --max-new-tokens 30 --prompt 'the king and the king and the king'";
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM, prompt + " --prompt-lookup-num-tokens 5 --num-return-sequences 1");
  REQUIRE(run.status == 0);
  const auto json = nlohmann::json::parse(run.out);
  for (const char* name :
       {"acceptance_rate", "tokens_per_target_pass", "draft_cost", "speedup", "expected_speedup"}) {
    CHECK(json["stats"].contains(name));
  }
  CHECK(json["stats"]["tokens_per_target_pass"] > 1.0);
  CHECK(run.err.find("drafted tokens accepted") != std::string::npos);
  CHECK(json["sequences"] ==
        nlohmann::json::parse(run_program(STAIRCASE_STEP_PROGRAM, prompt).out)["sequences"]);

  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 1 --prompt-lookup-num-tokens 5")
            .err.find("no token was drafted") != std::string::npos);
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 1 --max-matching-ngram-size 3")
            .err.find("does nothing without --prompt-lookup-num-tokens") != std::string::npos);
  const ProgramRun both =
      run_program(STAIRCASE_STEP_PROGRAM, "--draft-model tales-1m --prompt-lookup-num-tokens 5");
  CHECK(both.status == 2);
  CHECK(both.err.find("choose one of them") != std::string::npos);
  for (const char* wrong :
       {"--prompt-lookup-num-tokens 0", "--prompt-lookup-num-tokens 65", "--prompt-lookup-num-tokens x",
        "--max-matching-ngram-size 0", "--prompt-lookup-num-tokens 5 --no-use-cache",
        "--prompt-lookup-num-tokens 5 --drift x.svg", "--prompt-lookup-num-tokens 5 --num-beams 2",
        "--prompt-lookup-num-tokens 5 --benchmark x"}) {
    CAPTURE(wrong);
    CHECK(run_program(STAIRCASE_STEP_PROGRAM, wrong).status == 2);
  }
}
