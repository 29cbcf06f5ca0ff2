#include <doctest/doctest.h>

#include "speculative.h"
#include "tests/chi_square.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/tiny_model.h"

using namespace staircase;

namespace {

Gpt2& draft() {
  static Gpt2 model = tales().load_beside(find_model("tales-1m"));
  return model;
}

/// A random model of a few tokens and positions.
Gpt2 tiny(std::uint32_t seed, int n_positions = 37) {
  const TemporaryFolder folder;
  TinyModel(seed, 5, n_positions).write(folder.path());
  return Gpt2::load(folder.path(), make_cpu_device(1));
}

struct Run {
  std::vector<int> tokens;    ///< the new ones
  std::vector<int> accepted;  ///< in each round
  Generation generation;
  Speculation speculation;
};

Run speculated(Gpt2& target, Gpt2& proposer, const std::vector<int>& prompt, const GenerateOptions& options) {
  Run run;
  int accepted = 0;
  run.generation = speculate(target, proposer, prompt, options, run.speculation, [&](const Token& token) {
    if (token.origin == Origin::kAccepted) {
      ++accepted;
    } else {
      run.accepted.push_back(accepted);
      accepted = 0;
    }
  });
  run.tokens = behind(prompt.size(), run.generation.tokens);
  return run;
}

/// How likely the counts of all texts of three tokens are, each drawn by `text(generator)`, if `chance(text)`
/// is their probability.
template <typename Text, typename Chance>
double p_value_of_texts(int draws, const Text& text, const Chance& chance) {
  std::vector<int> counts(125);
  std::vector<float> chances;
  for (int i = 0; i < 125; ++i) chances.push_back(static_cast<float>(chance({i / 25, i / 5 % 5, i % 5})));
  std::mt19937 generator(1);
  for (int i = 0; i < draws; ++i) {
    const std::vector<int> tokens = text(generator);
    ++counts[tokens[0] * 25 + tokens[1] * 5 + tokens[2]];
  }
  return p_value(counts, chances);
}

/// Two "models" that are tables: the probabilities of each of five tokens behind a text of up to four.
std::vector<float> table(unsigned seed, std::span<const int> text) {
  for (const int token : text) seed = seed * 6 + token + 1;
  std::mt19937 generator(seed);
  std::vector<float> probabilities(5);
  float sum = 0.0f;
  for (float& probability : probabilities)
    sum += probability = static_cast<float>(std::pow(uniform(generator), 2));
  for (float& probability : probabilities) probability /= sum;
  return probabilities;
}

/// The p-value of three tokens that a rule of verification gives, when two are drafted a round.
template <typename Rule>
double p_value_of_rule(const Rule& rule) {
  const unsigned target = 1, proposer = 2;
  return p_value_of_texts(
      50000,
      [&](std::mt19937& generator) {
        std::vector<int> text;
        while (text.size() < 3) {
          std::vector<int> longer = text;
          std::vector<std::vector<float>> q, p;
          for (int i = 0; i < 2; ++i) {
            q.push_back(table(proposer, longer));
            longer.push_back(draw(q.back(), generator));
          }
          for (int i = 0; i <= 2; ++i) p.push_back(table(target, std::span(longer).first(text.size() + i)));
          const std::span<const int> drafted = std::span(longer).subspan(text.size());
          const Verdict verdict = rule(drafted, q, p, generator);
          text.insert(text.end(), drafted.begin(), drafted.begin() + verdict.accepted);
          text.push_back(verdict.next);
        }
        return text;
      },
      [&](const std::vector<int>& text) {
        double chance = 1.0;
        for (int i = 0; i < 3; ++i) chance *= table(target, std::span(text).first(i))[text[i]];
        return chance;
      });
}

using Drafted = std::span<const int>;
using Distributions = std::span<const std::vector<float>>;

}  // namespace

TEST_CASE("greedy speculation is the target's greedy decoding, for every number of drafted tokens") {
  for (const auto& run : reference("greedy.json")["cases"]) {
    const std::vector<int> prompt = run["prompt_ids"], want = run["ids"];
    for (const int gamma : {1, 2, 4, 7, 16}) {
      CAPTURE(run["name"]);
      CAPTURE(gamma);
      const Run got =
          speculated(tales(), draft(), prompt, {.max_new_tokens = 64, .num_speculative_tokens = gamma});
      CHECK(first_difference(got.tokens, want, run["gaps"]) == -1);
    }
    CHECK(
        first_difference(
            speculated(tales(), draft(), prompt, {.max_new_tokens = 64, .num_speculative_tokens = {}}).tokens,
            want, run["gaps"]) == -1);
  }
}

TEST_CASE("each round accepts as many tokens as Hugging Face's models agree on") {
  for (const auto& run : reference("speculative.json")["cases"]) {
    CAPTURE(run["name"]);
    const std::vector<int> prompt = run["prompt_ids"];
    const Run got = speculated(tales(), draft(), prompt, {.max_new_tokens = 64});
    CHECK(got.tokens == run["ids"].get<std::vector<int>>());
    // Where the text ends within a round, the reference drafts on, and this step does not.
    std::vector<int> want = run["accepted"];
    REQUIRE(got.accepted.size() >= want.size() - 1);
    for (std::size_t round = 0; round + 1 < want.size(); ++round) CHECK(got.accepted[round] == want[round]);
  }
}

TEST_CASE("the rule of verification gives the target's distribution, whatever the draft proposes") {
  CHECK(p_value_of_rule(verify) > 0.01);
}

TEST_CASE("a broken rule of verification gives another one, and the test notices") {
  // Accepts everything.
  CHECK(p_value_of_rule([](Drafted drafted, Distributions, Distributions p, std::mt19937& generator) {
          return Verdict{static_cast<int>(drafted.size()), draw(p.back(), generator)};
        }) < 1e-6);
  // Draws from p, not from what is left of it, in the place of a rejected token.
  CHECK(p_value_of_rule([](Drafted drafted, Distributions q, Distributions p, std::mt19937& generator) {
          const Verdict verdict = verify(drafted, q, p, generator);
          return Verdict{verdict.accepted, draw(p[verdict.accepted], generator)};
        }) < 1e-6);
  // Accepts only what the target finds likelier than the draft.
  CHECK(p_value_of_rule([](Drafted drafted, Distributions q, Distributions p, std::mt19937& generator) {
          for (int i = 0; i < std::ssize(drafted); ++i) {
            if (q[i][drafted[i]] > p[i][drafted[i]]) return Verdict{i, draw(residual(p[i], q[i]), generator)};
          }
          return Verdict{static_cast<int>(drafted.size()), draw(p.back(), generator)};
        }) < 1e-6);
  // Compares the other way round.
  CHECK(p_value_of_rule([](Drafted drafted, Distributions q, Distributions p, std::mt19937& generator) {
          for (int i = 0; i < std::ssize(drafted); ++i) {
            if (uniform(generator) * p[i][drafted[i]] < q[i][drafted[i]]) continue;
            return Verdict{i, draw(residual(p[i], q[i]), generator)};
          }
          return Verdict{static_cast<int>(drafted.size()), draw(p.back(), generator)};
        }) < 1e-6);
}

TEST_CASE("the first three tokens of two models are distributed as the target's own, with every option on") {
  Gpt2 target = tiny(1), proposer = tiny(2);
  GenerateOptions options{.max_new_tokens = 5, .ignore_eos = true};
  options.sampling = {.do_sample = true,
                      .presence_penalty = 0.5f,
                      .frequency_penalty = 0.25f,
                      .repetition_penalty = 1.2f,
                      .temperature = 2.0f,
                      .top_k = 4,
                      .top_p = 0.97f};
  const std::vector<int> prompt{3, 1};
  for (const int gamma : {1, 2, 3}) {
    options.num_speculative_tokens = gamma;
    const double p = p_value_of_texts(
        kSanitized ? 1000 : 8000,
        [&](std::mt19937& generator) {
          options.seed = generator();
          return speculated(target, proposer, prompt, options).tokens;
        },
        [&](const std::vector<int>& text) {
          std::vector<int> tokens = prompt;
          double chance = 1.0;
          for (const int token : text) {
            chance *= distribution(target.next_logits(tokens), tokens, options.sampling)[token];
            tokens.push_back(token);
          }
          return chance;
        });
    CAPTURE(gamma);
    CHECK(p > 0.01);
  }
}

TEST_CASE("the first token of tales-6m is distributed as without a draft model" * doctest::skip(kSanitized)) {
  const std::vector<int> prompt = reference("greedy.json")["cases"][0]["prompt_ids"];
  GenerateOptions options{.max_new_tokens = 4, .num_speculative_tokens = 3};
  options.sampling.do_sample = true;
  std::vector<int> counts(tales().config().vocab_size);
  for (options.seed = 0; options.seed < 600; ++options.seed) {
    ++counts[speculated(tales(), draft(), prompt, options).tokens[0]];
  }
  const std::vector<float> want = distribution(tales().next_logits(prompt), prompt, options.sampling);
  CHECK(p_value(counts, want) > 0.01);
}

TEST_CASE("an accepted end of text ends the text there") {
  const auto& run = reference("speculative.json")["cases"].back();
  const std::vector<int> prompt = run["prompt_ids"];
  REQUIRE(run["finish"] == "eos");
  for (const int gamma : {1, 4, 16}) {
    const Run got =
        speculated(tales(), draft(), prompt, {.max_new_tokens = 64, .num_speculative_tokens = gamma});
    CHECK(got.generation.finish_reason == FinishReason::kEos);
    CHECK(got.tokens == run["ids"].get<std::vector<int>>());
  }
}

TEST_CASE("where the smaller of the two contexts ends the target goes on alone, up to and beyond its own") {
  Gpt2 target = tiny(1), smaller = tiny(2, 13);
  GenerateOptions options{.max_new_tokens = 50, .ignore_eos = true, .on_overflow = Overflow::kRecompute};
  for (const int length : {1, 2, 12, 13, 14, 36, 37, 38, 60}) {
    std::vector<int> prompt;
    for (int i = 0; i < length; ++i) prompt.push_back(i * i % 5);
    CAPTURE(length);
    std::vector<int> want = prompt;
    for (int i = 0; i < 50; ++i) {
      want.push_back(argmax(
          target.next_logits(std::span<const int>(want).last(std::min<std::size_t>(want.size(), 37)))));
    }
    const Run got = speculated(target, smaller, prompt, options);
    CHECK(got.generation.tokens == want);
    CHECK((got.speculation.drafted > 0) == (length < 13));
  }
}

TEST_CASE("what the target draws alone has nothing to do with what was drawn before") {
  Gpt2 target = tiny(1), smaller = tiny(2, 3);
  GenerateOptions options{.max_new_tokens = 3, .ignore_eos = true};
  options.sampling = {.do_sample = true, .temperature = 4.0f};
  const std::vector<int> prompt{3, 1};  // a round of one or two tokens, and then no more
  const double p = p_value_of_texts(
      kSanitized ? 1000 : 8000,
      [&](std::mt19937& generator) {
        options.seed = generator();
        return speculated(target, smaller, prompt, options).tokens;
      },
      [&](const std::vector<int>& text) {
        std::vector<int> tokens = prompt;
        double chance = 1.0;
        for (const int token : text) {
          chance *= distribution(target.next_logits(tokens), tokens, options.sampling)[token];
          tokens.push_back(token);
        }
        return chance;
      });
  CHECK(p > 0.01);
}

TEST_CASE("several texts of a prompt go on alone one by one") {
  Gpt2 target = tiny(1), smaller = tiny(2, 13);
  GenerateOptions options{.max_new_tokens = 30, .ignore_eos = true};
  options.sampling.do_sample = true;
  const Run want = speculated(target, smaller, {3, 1}, options);
  options.num_return_sequences = 3;
  CHECK(speculated(target, smaller, {3, 1}, options).tokens == want.tokens);
}

TEST_CASE("the expected speed-up is the one of the paper") {
  CHECK(expected_speedup(0.0, 4, 0.0) == doctest::Approx(1.0));
  CHECK(expected_speedup(1.0, 4, 0.0) == doctest::Approx(5.0));
  CHECK(expected_speedup(0.8, 5, 0.05) == doctest::Approx(3.68928 / 1.25));
}

TEST_CASE("the program tells how well it went, and refuses what cannot be") {
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM, "--json --max-new-tokens 30 --draft-model tales-1m --prompt The");
  REQUIRE(run.status == 0);
  const auto stats = nlohmann::json::parse(run.out)["stats"];
  for (const char* name :
       {"acceptance_rate", "tokens_per_target_pass", "draft_cost", "speedup", "expected_speedup"}) {
    CHECK(stats.contains(name));
  }
  CHECK(run.err.find("drafted tokens accepted") != std::string::npos);

  // Each text has random numbers of its own.
  const auto sequences = [](const std::string& arguments) {
    const ProgramRun drawn = run_program(
        STAIRCASE_STEP_PROGRAM,
        "--json --max-new-tokens 12 --draft-model tales-1m --prompt The --do-sample " + arguments);
    REQUIRE(drawn.status == 0);
    return nlohmann::json::parse(drawn.out)["sequences"];
  };
  const auto both = sequences("--num-return-sequences 2 --seed 5");
  CHECK(both[0] == sequences("--seed 5")[0]);
  CHECK(both[1] == sequences("--seed 6")[0]);
  CHECK(both[0] != both[1]);

  // The vocabulary of tales-6m, but two tokens have changed places.
  const TemporaryFolder other;
  const std::filesystem::path ours = find_model("tales-6m");
  TinyModel(1, 4096).write(other.path());
  std::filesystem::copy(ours / "merges.txt", other.path());
  std::ifstream file(ours / "vocab.json");
  auto vocabulary = nlohmann::json::parse(file);
  std::swap(vocabulary["the"], vocabulary["and"]);
  std::ofstream(other.path() / "vocab.json") << vocabulary;
  const ProgramRun foreign = run_program(STAIRCASE_STEP_PROGRAM, "--draft-model " + other.path().string());
  CHECK(foreign.status == 1);
  CHECK(foreign.err.find("it cannot propose tokens") != std::string::npos);
  for (const char* wrong : {"--num-speculative-tokens 0", "--num-speculative-tokens 17",
                            "--num-speculative-tokens x", "--draft-model tales-1m --no-use-cache"}) {
    CHECK(run_program(STAIRCASE_STEP_PROGRAM, wrong).status == 2);
  }
}
