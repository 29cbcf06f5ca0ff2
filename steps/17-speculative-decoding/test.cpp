#include <doctest/doctest.h>

#include <map>

#include "generate.h"
#include "speculative.h"
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

Model& draft() {
  static Model model = tales().load_beside(find_model("tales-1m"));
  return model;
}

/// A random model of a few tokens and positions.
Model tiny(std::uint32_t seed, int n_positions = 37) {
  const TemporaryFolder folder;
  TinyModel(seed, 5, n_positions).write(folder.path());
  return Model::load(folder.path(), make_cpu_device(1));
}

struct Run {
  std::vector<int> tokens;    ///< the new ones
  std::vector<int> accepted;  ///< in each round
  Generation generation;
  Speculation counts;
};

Run speculated(Model& target, Model& proposer, const std::vector<int>& prompt, const TextOptions& options,
               int gamma = 4) {
  Run run;
  int accepted = 0;
  const auto on_token = [&](const Token& token) {
    if (token.origin == Origin::kAccepted) {
      ++accepted;
    } else {
      run.accepted.push_back(accepted);
      accepted = 0;
    }
  };
  run.generation = speculate(target, proposer, prompt, options, gamma, run.counts, on_token);
  run.tokens = tokens_after(prompt.size(), run.generation.tokens);
  return run;
}

/// What the target generates from the prompt alone.
Generation plain(Model& target, const std::vector<int>& prompt, const TextOptions& options) {
  StaticKvCache cache(target);
  return generate(target, {prompt}, options, cache, [](int, const Token&) {})[0];
}

/// The p-value of the counts of all texts of three tokens that `text(generator)` draws, if `chance(text)` is
/// their probability.
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

/// Two "models" that are tables: the probabilities of each of five tokens after a text of up to four.
std::vector<float> table(unsigned seed, std::span<const int> text) {
  for (const int token : text) seed = seed * 6 + token + 1;
  static std::map<unsigned, std::vector<float>> tables;  // called a million times
  const auto [place, is_new] = tables.try_emplace(seed, 5);
  std::vector<float>& probabilities = place->second;
  if (!is_new) return probabilities;
  std::mt19937 generator(seed);
  float sum = 0.0f;
  for (float& probability : probabilities)
    sum += probability = static_cast<float>(std::pow(uniform(generator), 2));
  for (float& probability : probabilities) probability /= sum;
  return probabilities;
}

/// The p-value of three tokens that a rule of verification yields with two drafted tokens per round.
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

TEST_CASE("the rule of verification gives the target's distribution, whatever the draft proposes") {
  CHECK(p_value_of_rule(verify) > 0.01);
}

TEST_CASE("a broken rule of verification gives another one, and the test notices") {
  // Accepts everything.
  CHECK(p_value_of_rule([](Drafted drafted, Distributions, Distributions p, std::mt19937& generator) {
          return Verdict{static_cast<int>(drafted.size()), draw(p.back(), generator)};
        }) < 1e-6);
  // Draws from p instead of the residual for a rejected token.
  CHECK(p_value_of_rule([](Drafted drafted, Distributions q, Distributions p, std::mt19937& generator) {
          const Verdict verdict = verify(drafted, q, p, generator);
          return Verdict{verdict.accepted, draw(p[verdict.accepted], generator)};
        }) < 1e-6);
  // Accepts only tokens that the target finds more likely than the draft.
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

TEST_CASE("greedy speculation is the target's greedy decoding, for every number of drafted tokens") {
  for (const int gamma : {1, 4, 16}) {
    CAPTURE(gamma);
    CHECK(difference_from_greedy([&](const std::vector<int>& prompt, int count) {
            const TextOptions options{.stopping = {.max_new_tokens = count}};
            return speculated(tales(), draft(), prompt, options, gamma).tokens;
          }) == "");
  }
}

TEST_CASE("each round accepts as many tokens as Hugging Face's models agree on") {
  for (const auto& run : reference("speculative.json")["cases"]) {
    CAPTURE(run["name"]);
    const std::vector<int> prompt = run["prompt_ids"];
    const Run got = speculated(tales(), draft(), prompt, {.stopping = {.max_new_tokens = 64}});
    CHECK(got.tokens == run["ids"].get<std::vector<int>>());
    // If the text ends within a round, the reference continues drafting, but this step does not.
    std::vector<int> want = run["accepted"];
    REQUIRE(got.accepted.size() >= want.size() - 1);
    for (std::size_t round = 0; round + 1 < want.size(); ++round) CHECK(got.accepted[round] == want[round]);
  }
}

TEST_CASE("each token is reported as accepted, corrected or free, and the counts are those of the rounds") {
  const std::vector<int> prompt = reference("speculative.json")["cases"][0]["prompt_ids"];
  const auto rounds = reference("speculative.json")["cases"][0]["rounds"];
  std::vector<Origin> got, want;
  for (const auto& round : rounds) {
    const int accepted = round["accepted"];
    want.insert(want.end(), accepted, Origin::kAccepted);
    want.push_back(accepted < 4 ? Origin::kCorrected : Origin::kBonus);
  }
  Speculation counts;
  const TextOptions options{.stopping = {.max_new_tokens = 60}};
  speculate(tales(), draft(), prompt, options, 4, counts,
            [&](const Token& token) { got.push_back(token.origin); });
  REQUIRE(got.size() == 60);
  // Near its end the text has no room for four tokens, so a round may end sooner.
  for (int i = 0; i < 55; ++i) CHECK(got[i] == want[i]);
  CHECK(counts.accepted == std::ranges::count(got, Origin::kAccepted));
  CHECK(counts.rounds == 60 - counts.accepted);
  CHECK(counts.drafted <= 4 * counts.rounds);
  CHECK(counts.drafted > counts.accepted);
}

TEST_CASE("the first three tokens of two models are distributed as the target's own, with every option on") {
  Model target = tiny(1), proposer = tiny(2);
  TextOptions options{.stopping = {.max_new_tokens = 5, .ignore_eos = true},
                      .sampling = {.do_sample = true,
                                   .presence_penalty = 0.5f,
                                   .frequency_penalty = 0.25f,
                                   .repetition_penalty = 1.2f,
                                   .temperature = 2.0f,
                                   .top_k = 4,
                                   .top_p = 0.97f}};
  const std::vector<int> prompt{3, 1};
  for (const int gamma : {1, 2, 3}) {
    const double p = p_value_of_texts(
        kSanitized ? 1000 : 8000,
        [&](std::mt19937& generator) {
          options.sampling.seed = generator();
          return speculated(target, proposer, prompt, options, gamma).tokens;
        },
        [&](const std::vector<int>& text) {
          std::vector<int> tokens = prompt;
          double chance = 1.0;
          for (const int token : text) {
            chance *= next_distribution(target, tokens, options.sampling)[token];
            tokens.push_back(token);
          }
          return chance;
        });
    CAPTURE(gamma);
    CHECK(p > 0.01);
  }
}

TEST_CASE("the first token of tales-6m has the same distribution as without a draft model" *
          doctest::skip(kSanitized)) {
  const std::vector<int> prompt = reference("greedy.json")["cases"][0]["prompt_ids"];
  // One drafted token: any token after the first is decided later.
  TextOptions options{.stopping = {.max_new_tokens = 2}, .sampling = {.do_sample = true}};
  std::vector<int> counts(tales().config().vocab_size);
  for (unsigned& seed = options.sampling.seed; seed < 600; ++seed) {
    ++counts[speculated(tales(), draft(), prompt, options).tokens[0]];
  }
  const std::vector<float> want = next_distribution(tales(), prompt, options.sampling);
  CHECK(p_value(counts, want) > 0.01);
}

TEST_CASE("an accepted end of text ends the text there") {
  const auto& run = reference("speculative.json")["cases"].back();
  const std::vector<int> prompt = run["prompt_ids"];
  REQUIRE(run["finish"] == "eos");
  for (const int gamma : {1, 4, 16}) {
    const Run got = speculated(tales(), draft(), prompt, {.stopping = {.max_new_tokens = 64}}, gamma);
    CHECK(got.generation.finish_reason == FinishReason::kEos);
    CHECK(got.tokens == run["ids"].get<std::vector<int>>());
  }
}

TEST_CASE("where the smaller of the two contexts ends, the target goes on alone, up to and beyond its own") {
  Model target = tiny(1);
  const TextOptions options{.stopping = {.max_new_tokens = 50, .ignore_eos = true},
                            .overflow = {.on_overflow = Overflow::kRecompute}};
  for (const int length : {1, 2, 12, 13, 14, 36, 37, 38, 60}) {
    std::vector<int> prompt;
    for (int i = 0; i < length; ++i) prompt.push_back(i * i % 5);
    CAPTURE(length);
    std::vector<int> want = prompt;
    for (int i = 0; i < 50; ++i) {
      want.push_back(argmax(
          target.next_logits(std::span<const int>(want).last(std::min<std::size_t>(want.size(), 37)))));
    }
    for (const int context : {13, 37}) {
      CAPTURE(context);
      Model proposer = tiny(2, context);
      const Run got = speculated(target, proposer, prompt, options);
      CHECK(got.generation.tokens == want);
      CHECK((got.counts.drafted > 0) == (length < context));
    }
  }
}

TEST_CASE("beyond the context a sliding cache gives the target's own text" * doctest::skip(kSanitized)) {
  const auto& run = reference("sliding.json");
  std::vector<int> text = run["prompt_ids"], rest = run["ids"];
  text.insert(text.end(), rest.begin(), rest.end());
  for (const int free : {0, 1, 9, 40}) {
    CAPTURE(free);
    const std::vector<int> prompt(text.begin(), text.begin() + tales().config().n_positions - free);
    const TextOptions options{.stopping = {.max_new_tokens = 70, .ignore_eos = true}};
    const Run got = speculated(tales(), draft(), prompt, options);
    CHECK(got.generation.tokens == plain(tales(), prompt, options).tokens);
    CHECK((got.counts.drafted > 0) == (free > 0));
  }
}

TEST_CASE("the most likely tokens that are shown are those of the target alone, drawn or not") {
  const std::vector<int> prompt = reference("speculative.json")["cases"][0]["prompt_ids"];
  for (const bool do_sample : {false, true}) {
    TextOptions options{.stopping = {.max_new_tokens = 20},
                        .sampling = {.do_sample = do_sample, .temperature = 0.7f, .show_candidates = 3}};
    if (do_sample) options.sampling.top_k = 1;  // or the texts would diverge
    std::vector<std::vector<Candidate>> want, got;
    StaticKvCache cache(tales());
    generate(tales(), {prompt}, options, cache,
             [&](int, const Token& token) { want.push_back(token.candidates); });
    Speculation counts;
    speculate(tales(), draft(), prompt, options, 4, counts,
              [&](const Token& token) { got.push_back(token.candidates); });
    REQUIRE(got.size() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      REQUIRE(got[i].size() == (do_sample ? 1 : 3));
      for (std::size_t c = 0; c < got[i].size(); ++c) {
        CHECK(got[i][c].token_id == want[i][c].token_id);
        CHECK(got[i][c].probability == doctest::Approx(want[i][c].probability).epsilon(1e-3));
      }
    }
  }
}

TEST_CASE("what the target draws alone is independent of earlier draws") {
  Model target = tiny(1), smaller = tiny(2, 3);
  TextOptions options{.stopping = {.max_new_tokens = 3, .ignore_eos = true},
                      .sampling = {.do_sample = true, .temperature = 4.0f}};
  const std::vector<int> prompt{3, 1};  // a round of one or two tokens, and then no more
  const double p = p_value_of_texts(
      kSanitized ? 1000 : 8000,
      [&](std::mt19937& generator) {
        options.sampling.seed = generator();
        return speculated(target, smaller, prompt, options).tokens;
      },
      [&](const std::vector<int>& text) {
        std::vector<int> tokens = prompt;
        double chance = 1.0;
        for (const int token : text) {
          chance *= next_distribution(target, tokens, options.sampling)[token];
          tokens.push_back(token);
        }
        return chance;
      });
  CHECK(p > 0.01);
}

TEST_CASE("no new token takes no pass") {
  const Run run = speculated(tales(), draft(), {321, 1682}, {.stopping = {.max_new_tokens = 0}});
  CHECK(run.generation.tokens == std::vector<int>{321, 1682});
  CHECK(run.counts.rounds == 0);
}

TEST_CASE("a seed gives one text, and another seed another") {
  TextOptions options{.stopping = {.max_new_tokens = 30, .ignore_eos = true},
                      .sampling = {.do_sample = true}};
  const std::vector<int> first = speculated(tales(), draft(), {321, 1682}, options).tokens;
  CHECK(speculated(tales(), draft(), {321, 1682}, options).tokens == first);
  options.sampling.seed = 1;
  CHECK(speculated(tales(), draft(), {321, 1682}, options).tokens != first);
}

TEST_CASE("the program prints how well it went") {
  const std::string arguments = "--json --max-new-tokens 30 --prompt The";
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, arguments + " --draft-model tales-1m");
  REQUIRE(run.status == 0);
  const auto json = run.json();
  CHECK(json["sequences"] == run_program(STAIRCASE_STEP_PROGRAM, arguments).json()["sequences"]);

  const std::vector<int> prompt = json["sequences"][0]["prompt_token_ids"];
  const Speculation counts =
      speculated(tales(), draft(), prompt, {.stopping = {.max_new_tokens = 30}}).counts;
  CHECK(run.err.find(fmt::format("{} of {} drafted tokens accepted", counts.accepted, counts.drafted)) !=
        std::string::npos);
  CHECK(json["stats"]["acceptance_rate"] == doctest::Approx(1.0 * counts.accepted / counts.drafted));
  // Both models, and both caches.
  CHECK(json["stats"]["weight_bytes"] == tales().weight_bytes() + draft().weight_bytes());
  CHECK(json["stats"]["cache_bytes"] == (StaticKvCache(tales()).use() + StaticKvCache(draft()).use()).bytes);
}

TEST_CASE("a draft may have more tokens than its tokenizer, and so may its target") {
  const TemporaryFolder padded;
  const std::filesystem::path ours = find_model("tales-6m");
  TinyModel(1, 4224).write(padded.path());
  for (const char* const file : {"vocab.json", "merges.txt"})
    std::filesystem::copy(ours / file, padded.path());
  std::ifstream config(padded.path() / "config.json");
  auto settings = nlohmann::json::parse(config);
  settings["eos_token_id"] = 4095;
  std::ofstream(padded.path() / "config.json") << settings;
  const auto text = [](const std::string& arguments) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--json --max-new-tokens 20 " + arguments);
    CAPTURE(run.err);
    REQUIRE(run.status == 0);
    return run.json()["sequences"][0]["token_ids"];
  };
  CHECK(text("--draft-model " + padded.path().string()) == text(""));
}

TEST_CASE("the program refuses impossible options") {
  // The vocabulary of tales-6m with two tokens swapped.
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
  CHECK(contains(foreign.err, "it cannot propose tokens"));
  const std::string draft = "--draft-model tales-1m ",
                    alone = "--draft-model needs the cache, one prompt and one continuation";
  const std::pair<std::string, std::string> wrong[] = {
      {"--num-speculative-tokens 0", "--num-speculative-tokens is 0, but it must be between 1 and 16"},
      {"--num-speculative-tokens 17", "--num-speculative-tokens is 17, but it must be between 1 and 16"},
      {"--num-speculative-tokens x",
       "--num-speculative-tokens is x, but it must be a whole number between 1 and 16"},
      {draft + "--no-use-cache", alone},
      {draft + "--prompt The --prompt A", alone},
      {draft + "--do-sample --num-return-sequences 2", alone},
  };
  for (const auto& [arguments, message] : wrong) {
    const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, arguments);
    CAPTURE(refused.err);
    CHECK(refused.status == 2);
    CHECK(refused.out.empty());
    CHECK(contains(refused.err, "error: " + message));
    CHECK(ends_with(refused.err, "\n"));
  }
}
