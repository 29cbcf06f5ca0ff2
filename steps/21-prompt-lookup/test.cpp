#include <doctest/doctest.h>

#include <map>
#include <set>

#include "common/text/tokenizer.h"
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

constexpr int kVocabulary = 5;  // of the small models

/// A random model of a few tokens and positions.
Model tiny(std::uint32_t seed, int n_positions = 37) {
  const TemporaryFolder folder;
  TinyModel(seed, kVocabulary, n_positions).write(folder.path());
  return Model::load(folder.path(), make_cpu_device(1));
}

/// Proposes nothing of its own: only the tokens of a known text, each with certainty.
class Prophet : public Drafter {
 public:
  Prophet(std::vector<int> text, int vocab_size) : text_(std::move(text)), vocab_size_(vocab_size) {}

  Distributions propose(std::vector<int>& text, int count, const SamplingOptions&, std::mt19937&) override {
    Distributions q;
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
  Speculation counts;
  std::map<Origin, int> origins;
  std::vector<int> accepted;  ///< in each round
};

const Tokenizer& tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(find_model("tales-6m"));
  return tokenizer;
}

Run speculated(Model& target, Drafter& drafter, const std::vector<int>& prompt, const TextOptions& options,
               int gamma) {
  Run run;
  int accepted = 0;
  const auto on_token = [&](const Token& token) {
    ++run.origins[token.origin];
    if (token.origin == Origin::kAccepted) {
      ++accepted;
    } else {
      run.accepted.push_back(std::exchange(accepted, 0));
    }
  };
  run.generation = speculate(target, drafter, prompt, options, gamma, run.counts, on_token);
  return run;
}

/// Runs tales-6m with prompt look-up.
Run looked_up(const std::vector<int>& prompt, const TextOptions& options, int gamma, int longest = 2) {
  PromptLookup drafter(longest, tales().config().vocab_size);
  return speculated(tales(), drafter, prompt, options, gamma);
}

/// What a model generates from the prompt alone.
Generation plain(Model& model, const std::vector<int>& prompt, const TextOptions& options) {
  StaticKvCache cache(model);
  return generate(model, {prompt}, options, cache, [](int, const Token&) {})[0];
}

/// Every earlier position, tried one after another.
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

/// The proposal after `text`.
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
  return tokens_after(length, text);
}

/// The p-value of the three tokens after `prompt` that `text(generator)` yields, if `chances(text)` are the
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
    const std::vector<int> tokens = tokens_after(prompt.size(), text(generator));
    ++counts[(tokens[0] * kV + tokens[1]) * kV + tokens[2]];
  }
  return p_value(counts, expected);
}

/// A "model" that is a table: the probabilities of the token after a text.
std::vector<float> table(std::span<const int> text) {
  unsigned seed = 1;
  for (const int token : text) seed = seed * 6 + token + 1;
  static std::map<unsigned, std::vector<float>> tables;  // called a million times
  const auto [place, is_new] = tables.try_emplace(seed, kVocabulary);
  std::vector<float>& probabilities = place->second;
  if (!is_new) return probabilities;
  std::mt19937 generator(seed);
  float sum = 0.0f;
  for (float& probability : probabilities)
    sum += probability = static_cast<float>(std::pow(uniform(generator), 2));
  for (float& probability : probabilities) probability /= sum;
  return probabilities;
}

/// The p-value of a rule of verification, with two tokens per round looked up.
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
using Rows = std::span<const std::vector<float>>;

}  // namespace

TEST_CASE("the longest match counts, and of equal ones the latest") {
  CHECK(proposed({1, 2, 3, 5, 2, 4, 1, 2}, 2, 2) == std::vector<int>{3, 5});
  CHECK(proposed({1, 2, 3, 5, 2, 4, 1, 2}, 1, 2) == std::vector<int>{4, 1});
  CHECK(proposed({1, 2, 3, 1, 2, 4, 1, 2}, 2, 2) == std::vector<int>{4, 1});
  CHECK(proposed({1, 2, 3}, 3, 2).empty());
  CHECK(proposed({1}, 3, 2).empty());
  CHECK(proposed({1, 1}, 3, 0).empty());
}

TEST_CASE("the look-up finds the same as a naive search") {
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

TEST_CASE("what repeats goes on repeating, beyond the end of the text") {
  CHECK(proposed({5, 5}, 2, 4) == std::vector<int>{5, 5, 5, 5});
  CHECK(proposed({1, 2, 3, 1, 2}, 2, 7) == std::vector<int>{3, 1, 2, 3, 1, 2, 3});
}

TEST_CASE("the rule of verification gives the target's distribution when the look-up proposes") {
  CHECK(p_value_of_rule(verify) > 0.01);
}

TEST_CASE("a broken rule gives another one, and the test notices") {
  // Accepts everything.
  CHECK(p_value_of_rule([](Drafted drafted, Rows, Rows p, std::mt19937& generator) {
          return Verdict{static_cast<int>(drafted.size()), draw(p.back(), generator)};
        }) < 1e-6);
  // Draws from p for a rejected token, which may come again.
  CHECK(p_value_of_rule([](Drafted drafted, Rows q, Rows p, std::mt19937& generator) {
          const Verdict verdict = verify(drafted, q, p, generator);
          return Verdict{verdict.accepted, draw(p[verdict.accepted], generator)};
        }) < 1e-6);
  // Takes the proposal for a draw from all tokens, each equally likely.
  CHECK(p_value_of_rule([](Drafted drafted, Rows q, Rows p, std::mt19937& generator) {
          const std::vector<std::vector<float>> equal(q.size(),
                                                      std::vector<float>(kVocabulary, 1.0f / kVocabulary));
          return verify(drafted, equal, p, generator);
        }) < 1e-6);
  // Accepts tokens that the target finds likely enough.
  CHECK(p_value_of_rule([](Drafted drafted, Rows q, Rows p, std::mt19937& generator) {
          for (int i = 0; i < std::ssize(drafted); ++i) {
            if (p[i][drafted[i]] < 0.3f) return Verdict{i, draw(residual(p[i], q[i]), generator)};
          }
          return Verdict{static_cast<int>(drafted.size()), draw(p.back(), generator)};
        }) < 1e-6);
}

TEST_CASE(
    "greedy decoding with the look-up gives the same text, for every number of tokens and every length") {
  for (const auto& given : {std::pair{1, 3}, {3, 1}, {10, 2}, {64, 1}, {64, 3}}) {
    const int gamma = given.first, longest = given.second;  // clang 14 captures no structured binding
    CAPTURE(gamma);
    CAPTURE(longest);
    CHECK(difference_from_greedy([&](const auto& prompt, int count) {
            const TextOptions options{.stopping = {.max_new_tokens = count}};
            return tokens_after(prompt.size(), looked_up(prompt, options, gamma, longest).generation.tokens);
          }) == "");
  }
}

TEST_CASE("a text that repeats itself takes few passes") {
  const std::vector<int> prompt = tokenizer().encode(
      "I am a cat.\nI am a cat.\nI am a cat.\nI am a cat.\nI am a cat.\nI am a cat.\nI am a");
  const TextOptions options{.stopping = {.max_new_tokens = 40}};
  const Run got = looked_up(prompt, options, 10);
  CHECK(got.generation.tokens == plain(tales(), prompt, options).tokens);
  CHECK(got.counts.accepted + got.counts.rounds == 40);
  CHECK(got.counts.rounds < 20);
}

TEST_CASE("a proposal may be shorter than requested, or empty") {
  const std::vector<int> prompt = reference("greedy.json")["cases"][0]["prompt_ids"];
  const TextOptions options{.stopping = {.max_new_tokens = 20}};
  const std::vector<int> want = plain(tales(), prompt, options).tokens;
  // It knows the next six tokens and then no more.
  Prophet prophet({want.begin(), want.begin() + static_cast<int>(prompt.size()) + 6},
                  tales().config().vocab_size);
  const Run got = speculated(tales(), prophet, prompt, options, 4);
  CHECK(got.generation.tokens == want);
  CHECK(got.counts.drafted == 4 + 1);
  CHECK(got.counts.accepted == 4 + 1);
  CHECK(got.counts.rounds == 1 + 1 + 13);
  CHECK(got.origins ==
        std::map<Origin, int>{{Origin::kAccepted, 4 + 1}, {Origin::kBonus, 1 + 1}, {Origin::kModel, 13}});
}

TEST_CASE("the first three tokens are distributed as the target's own, with every option on") {
  Model target = tiny(2);
  TextOptions options{.stopping = {.max_new_tokens = 5, .ignore_eos = true},
                      .sampling = {.do_sample = true,
                                   .presence_penalty = 0.5f,
                                   .frequency_penalty = 0.25f,
                                   .repetition_penalty = 1.2f,
                                   .temperature = 2.0f,
                                   .top_k = 4,
                                   .top_p = 0.97f}};
  const std::vector<int> prompt{0, 1, 2, 3, 4, 0, 1};
  PromptLookup drafter(2, kVocabulary);
  for (const int gamma : {1, 2, 3}) {
    int all_accepted = 0;
    const double p = p_value_of_texts(
        kSanitized ? 1000 : 8000, prompt,
        [&](std::mt19937& generator) {
          options.sampling.seed = generator();
          const std::vector<int> tokens =
              speculated(target, drafter, prompt, options, gamma).generation.tokens;
          all_accepted += std::ranges::equal(std::span(tokens).subspan(prompt.size(), gamma),
                                             std::span(prompt).subspan(2, gamma));
          return tokens;
        },
        [&](const std::vector<int>& text) { return next_distribution(target, text, options.sampling); });
    CAPTURE(gamma);
    CHECK(p > 0.01);
    CHECK(all_accepted > 0);
  }
}

TEST_CASE("the end of text ends it as without the look-up") {
  const auto& ending = reference("speculative.json")["cases"].back();
  REQUIRE(ending["finish"] == "eos");
  const std::vector<int> prompt = ending["prompt_ids"];
  const TextOptions options{.stopping = {.max_new_tokens = 64}};
  for (const int gamma : {1, 4, 16}) {
    const Run got = looked_up(prompt, options, gamma);
    CHECK(tokens_after(prompt.size(), got.generation.tokens) == ending["ids"].get<std::vector<int>>());
    CHECK(got.generation.finish_reason == FinishReason::kEos);
  }
}

TEST_CASE("an end of text that is proposed and accepted ends the text there") {
  const auto& ending = reference("speculative.json")["cases"].back();
  const std::vector<int> prompt = ending["prompt_ids"], ids = ending["ids"];
  std::vector<int> known = prompt;
  known.insert(known.end(), ids.begin(), ids.end());
  known.insert(known.end(), 5, ids[0]);
  Prophet prophet(known, tales().config().vocab_size);
  const Run got = speculated(tales(), prophet, prompt, {.stopping = {.max_new_tokens = 64}}, 7);
  CHECK(tokens_after(prompt.size(), got.generation.tokens) == ids);
  CHECK(got.generation.finish_reason == FinishReason::kEos);
}

TEST_CASE("beyond the context a sliding cache gives the target's own text" * doctest::skip(kSanitized)) {
  const auto& run = reference("sliding.json");
  std::vector<int> text = run["prompt_ids"], rest = run["ids"];
  text.insert(text.end(), rest.begin(), rest.end());
  text.resize(tales().config().n_positions - 30);
  const TextOptions options{.stopping = {.max_new_tokens = 60, .ignore_eos = true}};
  const std::vector<int> want = plain(tales(), text, options).tokens;
  CHECK(looked_up(text, options, 10).generation.tokens == want);
  Model smaller = tales().load_beside(find_model("tales-1m"));
  DraftModel drafter(smaller);
  CHECK(speculated(tales(), drafter, text, options, 4).generation.tokens == want);
}

TEST_CASE("at the end of its context the target goes on alone") {
  Model target = tiny(1);
  const TextOptions options{.stopping = {.max_new_tokens = 50, .ignore_eos = true},
                            .overflow = {.on_overflow = Overflow::kRecompute}};
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
    const Run got = speculated(target, drafter, prompt, options, 4);
    CHECK(got.generation.tokens == want);
    CHECK((got.counts.drafted > 0) == (length < 37));
  }
}

TEST_CASE("where the context of a draft model ends, it proposes nothing, and the target goes on alone") {
  Model target = tiny(1), smaller = tiny(2, 13);
  const TextOptions options{.stopping = {.max_new_tokens = 50, .ignore_eos = true}};
  for (const int length : {1, 2, 12, 13, 14, 36, 37, 38, 60}) {
    std::vector<int> prompt;
    for (int i = 0; i < length; ++i) prompt.push_back(i * i % kVocabulary);
    CAPTURE(length);
    DraftModel drafter(smaller);
    const Run got = speculated(target, drafter, prompt, options, 4);
    CHECK(got.generation.tokens == plain(target, prompt, options).tokens);
    CHECK((got.counts.drafted > 0) == (length < 13));
  }
}

TEST_CASE("a draft model proposes as before: each round accepts what Hugging Face's models agree on") {
  Model smaller = tales().load_beside(find_model("tales-1m"));
  DraftModel drafter(smaller);
  for (const auto& run : reference("speculative.json")["cases"]) {
    CAPTURE(run["name"]);
    const std::vector<int> prompt = run["prompt_ids"], want = run["accepted"];
    const Run got = speculated(tales(), drafter, prompt, {.stopping = {.max_new_tokens = 64}}, 4);
    CHECK(tokens_after(prompt.size(), got.generation.tokens) == run["ids"].get<std::vector<int>>());
    // If the text ends within a round, the reference continues drafting, but this step does not.
    REQUIRE(got.accepted.size() >= want.size() - 1);
    for (std::size_t round = 0; round + 1 < want.size(); ++round) CHECK(got.accepted[round] == want[round]);
  }
}

TEST_CASE("the first three tokens of a draft model and its target are distributed as the target's own") {
  Model target = tiny(1), smaller = tiny(2);
  TextOptions options{.stopping = {.max_new_tokens = 5, .ignore_eos = true},
                      .sampling = {.do_sample = true, .temperature = 2.0f}};
  const std::vector<int> prompt{3, 1};
  DraftModel drafter(smaller);
  const double p = p_value_of_texts(
      kSanitized ? 1000 : 8000, prompt,
      [&](std::mt19937& generator) {
        options.sampling.seed = generator();
        return speculated(target, drafter, prompt, options, 2).generation.tokens;
      },
      [&](const std::vector<int>& text) { return next_distribution(target, text, options.sampling); });
  CHECK(p > 0.01);
}

TEST_CASE("one draft model serves several texts, one after another") {
  Model target = tiny(1), smaller = tiny(2, 13);
  DraftModel used(smaller);
  const TextOptions options{.stopping = {.max_new_tokens = 8, .ignore_eos = true}};
  // The last two begin as the first does.
  for (const std::vector<int>& prompt :
       {std::vector<int>{1, 2, 3, 4, 0, 1}, {3}, {0, 4}, {0, 4, 1}, {0}, {1, 2, 3, 4, 0, 1}, {1, 2}}) {
    DraftModel fresh(smaller);
    const Run want = speculated(target, fresh, prompt, options, 4);
    const Run got = speculated(target, used, prompt, options, 4);
    CHECK(got.generation.tokens == want.generation.tokens);
    CHECK(got.counts.accepted == want.counts.accepted);
    CHECK(got.counts.rounds == want.counts.rounds);
  }
}

TEST_CASE("a draft model keeps the common prefix of a text and the last one") {
  Model model = tiny(2);
  DraftModel drafter(model);
  std::vector<std::size_t> fed;  // tokens in each pass
  model.on_stage([&](std::string_view name, std::span<const float> values) {
    if (name == "embeddings") fed.push_back(values.size() / model.config().n_embd);
  });
  std::mt19937 generator;
  std::vector<int> text{1, 2, 3};
  drafter.propose(text, 3, {}, generator);
  CHECK(fed == std::vector<std::size_t>{3, 1, 1});
  fed.clear();
  text.resize(4);                                   // one draft is accepted
  text.push_back((text.back() + 1) % kVocabulary);  // a token that was not in the cache
  drafter.propose(text, 1, {}, generator);
  REQUIRE(fed.size() == 1);
  CHECK(fed[0] <= 2);
  fed.clear();
  text = {2, 2};
  drafter.propose(text, 1, {}, generator);
  CHECK(fed == std::vector<std::size_t>{2});
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

TEST_CASE("the program prints how well it went, and refuses impossible options") {
  const std::string prompt = "--json --max-new-tokens 30 --prompt 'the king and the king and the king'";
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, prompt + " --prompt-lookup-num-tokens 5");
  REQUIRE(run.status == 0);
  const auto json = run.json();
  CHECK(json["sequences"] == run_program(STAIRCASE_STEP_PROGRAM, prompt).json()["sequences"]);
  Speculation counts;
  PromptLookup lookup(LookupOptions().ngram, tales().config().vocab_size);
  speculate(tales(), lookup, json["sequences"][0]["prompt_token_ids"], {.stopping = {.max_new_tokens = 30}},
            5, counts, [](const Token&) {});
  CHECK(json["stats"]["acceptance_rate"] == doctest::Approx(1.0 * counts.accepted / counts.drafted));
  CHECK(json["stats"]["weight_bytes"] == tales().weight_bytes());
  CHECK(json["stats"]["cache_bytes"] == StaticKvCache(tales()).use().bytes);
  CHECK(contains(run.err, fmt::format("{} of {} drafted tokens accepted", counts.accepted, counts.drafted)));
  // Another length of the match changes the drafts, but not the text.
  const ProgramRun longer = run_program(STAIRCASE_STEP_PROGRAM,
                                        prompt + " --prompt-lookup-num-tokens 5 --max-matching-ngram-size 1");
  CHECK(longer.json()["sequences"] == json["sequences"]);
  const ProgramRun drafted = run_program(STAIRCASE_STEP_PROGRAM, prompt + " --draft-model tales-1m");
  REQUIRE(drafted.status == 0);
  CHECK(drafted.json()["sequences"] == json["sequences"]);
  CHECK(contains(run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 1 --max-matching-ngram-size 3").err,
                 "does nothing without --prompt-lookup-num-tokens"));

  const std::string either = "use either --draft-model or --prompt-lookup-num-tokens";
  const std::pair<std::string, std::string> wrong[] = {
      {"--draft-model tales-1m --prompt-lookup-num-tokens 5", either},
      {"--prompt-lookup-num-tokens 5 --no-use-cache", either},
      {"--prompt-lookup-num-tokens 5 --prompt A --prompt B", either},
      {"--draft-model tales-1m --do-sample --num-return-sequences 2", either},
      {"--prompt-lookup-num-tokens 0", "--prompt-lookup-num-tokens is 0, but it must be between 1 and 64"},
      {"--prompt-lookup-num-tokens 65", "--prompt-lookup-num-tokens is 65, but it must be between 1 and 64"},
      {"--prompt-lookup-num-tokens x",
       "--prompt-lookup-num-tokens is x, but it must be a whole number between 1 and 64"},
      {"--max-matching-ngram-size 0", "--max-matching-ngram-size is 0, but it must be 1 or more"},
      {"--num-speculative-tokens 17", "--num-speculative-tokens is 17, but it must be between 1 and 16"},
  };
  for (const auto& [arguments, message] : wrong) {
    const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, arguments);
    CAPTURE(refused.err);
    CHECK(refused.status == 2);
    CHECK(refused.out.empty());
    CHECK(contains(refused.err, message));
  }
}
