// Draft models for a batch: what they propose beside the drafter of step 21, and texts beside those alone.
#include "common/decoding/model_drafts.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <random>
#include <vector>

#include "common/decoding/drafted_engine.h"
#include "common/decoding/turn_scheduler.h"
#include "common/text/tokenizer.h"
#include "generate.h"
#include "speculative.h"
#include "tests/test_device.h"

namespace staircase {
namespace {

using Tokens = std::vector<int>;
const std::filesystem::path kModels = std::filesystem::path(STAIRCASE_SOURCE_TREE) / "models";

Model& target() {
  static Model model = Model::load(kModels / "tales-6m", make_test_device(2));
  return model;
}

Model& smaller() {
  static Model model = target().load_beside(kModels / "tales-1m");
  return model;
}

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(kModels / "tales-6m");
  return loaded;
}

Row row_of(int number, Tokens tokens, const RowOptions& options = {}) {
  return {number, std::move(tokens), options, std::mt19937(1), StopFilter(options.stop, tokenizer()), 1};
}

/// What the drafter of step 21 proposes greedily.
Tokens drafted_alone(const Tokens& text, int count, const SamplingOptions& options = {}) {
  DraftModel drafter(smaller());
  std::mt19937 generator(1);
  Tokens grown = text;
  drafter.propose(grown, count, options, generator);
  return {grown.begin() + std::ssize(text), grown.end()};
}

TEST_CASE("rows that join, leave, move and change get in one batch the drafts that each gets alone") {
  std::mt19937 generator(3);
  const auto random = [&](int count) { return static_cast<int>(generator() % static_cast<unsigned>(count)); };
  RowDraftModel drafter(smaller(), 4);
  std::vector<Row> rows;
  int number = 0, proposals = 0;
  for (int round = 0; round < 40; ++round) {
    CAPTURE(round);
    if (rows.size() < 4 && random(3) > 0) {
      Tokens tokens(static_cast<std::size_t>(1 + random(20)));
      for (int& token : tokens) token = random(4000);
      RowOptions options;
      if (number % 3 == 1) options.sampling.repetition_penalty = 1.5f;
      rows.push_back(row_of(number++, tokens, options));
    }
    if (rows.size() > 1 && random(5) == 0) {  // as where a row leaves
      std::swap(rows[0], rows.back());
      if (random(2) == 0) rows.pop_back();
    }
    std::vector<int> counts;
    for (std::size_t r = 0; r < rows.size(); ++r) counts.push_back(random(5));
    const std::vector<Tokens> drafts = drafter.propose(rows, counts);
    REQUIRE(drafts.size() == rows.size());
    for (std::size_t r = 0; r < rows.size(); ++r) {
      CAPTURE(r);
      CHECK(drafts[r] == drafted_alone(rows[r].tokens, counts[r], rows[r].options.sampling));
      proposals += counts[r] > 0;
      const int kept = random(static_cast<int>(drafts[r].size()) + 1);  // the others were refused
      rows[r].tokens.insert(rows[r].tokens.end(), drafts[r].begin(), drafts[r].begin() + kept);
      rows[r].tokens.push_back(random(4000));
    }
  }
  CHECK(proposals > 40);
}

TEST_CASE(
    "a text as long as the context of the draft model gets no draft, and one before it no more than fit") {
  Model small = target().load_beside(kModels / "tales-1m");
  small.limit_context(16);
  RowDraftModel drafter(small, 2);
  const std::vector<Row> rows{row_of(0, Tokens(14, 7)), row_of(1, Tokens(17, 7))};
  const std::vector<int> counts{5, 5};
  const std::vector<Tokens> drafts = drafter.propose(rows, counts);
  CHECK(drafts[0].size() == 3);  // after 14, 15 and 16 tokens
  CHECK(drafts[1].empty());
}

TEST_CASE("drafts that were all refused, and a text that has not changed, get the same drafts again") {
  RowDraftModel drafter(smaller(), 1);
  const std::vector<Row> rows{row_of(0, {321, 1682, 40})};
  for (const int count : {3, 1, 4, 0, 2})
    CHECK(drafter.propose(rows, std::vector<int>{count})[0] == drafted_alone(rows[0].tokens, count));
}

TEST_CASE("each penalty of a row alone changes what the draft model proposes, as it does for the target") {
  const Tokens text{321, 1682, 40, 321, 1682, 40, 321, 1682};
  const auto proposed = [&](const SamplingOptions& sampling) {
    RowOptions options;
    options.sampling = sampling;
    RowDraftModel drafter(smaller(), 1);
    const std::vector<Row> rows{row_of(0, text, options)};
    return drafter.propose(rows, std::vector<int>{6})[0];
  };
  const Tokens plain = drafted_alone(text, 6);
  for (const SamplingOptions& sampling :
       {SamplingOptions{.presence_penalty = 2.0f}, SamplingOptions{.frequency_penalty = 2.0f},
        SamplingOptions{.repetition_penalty = 3.0f}}) {
    CAPTURE(sampling.presence_penalty);
    CAPTURE(sampling.frequency_penalty);
    CHECK(proposed(sampling) == drafted_alone(text, 6, sampling));
    CHECK(proposed(sampling) != plain);
  }
}

TEST_CASE("a draft model with windows proposes the same from rings, also after its texts became shorter") {
  Model small = target().load_beside(kModels / "tales-window-1m");
  RowDraftModel drafter(small, 2);
  CHECK(drafter.use().bytes < 0.75 * static_cast<double>(StaticKvCache(small, 2).use().bytes));
  std::mt19937 generator(11);
  std::vector<Row> rows{row_of(0, Tokens(300, 7)), row_of(1, Tokens(40, 9))};
  for (int& token : rows[0].tokens) token = static_cast<int>(generator() % 4000);
  for (int round = 0; round < 30; ++round) {
    CAPTURE(round);
    const std::vector<int> counts{1 + round % 5, 4};
    const std::vector<Tokens> drafts = drafter.propose(rows, counts);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      CAPTURE(r);
      DraftModel alone(small);
      Tokens grown = rows[r].tokens;
      std::mt19937 unused;
      alone.propose(grown, counts[r], {}, unused);
      CHECK(drafts[r] == Tokens(grown.begin() + std::ssize(rows[r].tokens), grown.end()));
      rows[r].tokens = std::move(grown);
      if (round % 7 == 6) rows[r].tokens.resize(rows[r].tokens.size() / (round % 2 == 0 ? 2 : 10));
      for (int i = 0; i < 9; ++i) rows[r].tokens.push_back(static_cast<int>(generator() % 4000));
    }
  }
}

/// An engine with its own clock, so that drafts pay or not as a check sets.
struct ClockedEngine : DraftedEngine {
  using DraftedEngine::DraftedEngine;
  double now = 0.0, ms_per_token = 0.0;

  Logits forward(std::span<const std::span<const int>> sequences) override {
    now += 1.0;
    for (const std::span<const int> sequence : sequences)
      now += ms_per_token * static_cast<double>(sequence.size());
    return DraftedEngine::forward(sequences);
  }
};

TEST_CASE("every text is the same as alone with a draft model, with any options, cancels and few blocks") {
  std::mt19937 generator(5);
  const auto random = [&](int count) { return static_cast<int>(generator() % static_cast<unsigned>(count)); };
  std::int64_t preempted = 0, accepted = 0, rejected = 0;
  for (int round = 0; round < 8; ++round) {
    CAPTURE(round);
    const int slots = 1 + round % 4, blocks = 9 + 3 * (round % 3);
    PagedKvCache cache(target(), slots, blocks);
    ClockedEngine engine(target(), cache);
    engine.ms_per_token = 0.2 * (round % 3);
    RowDraftModel drafter(smaller(), slots);
    std::map<int, Generation> texts;
    ModelDraftingScheduler scheduler(
        engine, tokenizer(), slots, {round % 2 == 0 ? std::optional<int>(9) : std::nullopt},
        [](int, const Token&) {}, [&](int number, Generation text) { texts[number] = std::move(text); });
    scheduler.lookup.num_tokens = 1 + random(6);
    scheduler.drafter = &drafter;
    scheduler.rate.now = [&] { return engine.now; };
    std::map<int, std::pair<Tokens, RowOptions>> requests;
    for (int number = 0; number < 9; ++number) {
      Tokens tokens(static_cast<std::size_t>(1 + random(40)));
      for (int& token : tokens) token = random(400);
      RowOptions options;
      options.stopping = {.max_new_tokens = 1 + random(40), .ignore_eos = number % 2 == 0};
      options.sampling = {.do_sample = number % 3 == 1, .temperature = 0.5f};
      options.sampling.seed = static_cast<unsigned>(number);
      if (number % 4 == 2) options.sampling.repetition_penalty = 1.3f;
      options.extras.priority = number % 3;
      requests[number] = {tokens, options};
      scheduler.submit(number, tokens, options);
      for (int passes = random(3); passes > 0; --passes) scheduler.pass();
      if (number == 6) scheduler.cancel(5);
    }
    for (int pass = 0; !scheduler.idle() && pass < 2000; ++pass) scheduler.pass();
    REQUIRE(scheduler.idle());
    preempted += scheduler.preempted();
    accepted += scheduler.accepted;
    rejected += scheduler.drafted - scheduler.accepted;
    CHECK(texts.size() >= 8);
    for (const auto& one : texts) {
      CAPTURE(one.first);
      const auto& [tokens, options] = requests[one.first];
      StaticKvCache own(target(), 1);
      CHECK(
          one.second.tokens ==
          generate(target(), tokenizer(), {tokens}, 1, options, 1, own, [](int, const Token&) {})[0].tokens);
    }
  }
  CHECK(preempted > 5);
  CHECK(accepted > 50);
  CHECK(rejected > 50);
}

TEST_CASE("prompts are read in the target's pass, and one row tries before the cost of drafts is known") {
  struct Recorded : RowDraftModel {
    using RowDraftModel::RowDraftModel;
    std::vector<Tokens> counts = {};
    std::vector<Tokens> propose(std::span<const Row> rows, std::span<const int> wanted) override {
      counts.emplace_back(wanted.begin(), wanted.end());
      return RowDraftModel::propose(rows, wanted);
    }
  };
  PagedKvCache cache(target(), 3, 96);
  ClockedEngine engine(target(), cache);
  engine.ms_per_token = 0.01;
  Recorded drafter(smaller(), 3);
  ModelDraftingScheduler scheduler(
      engine, tokenizer(), 3, {}, [](int, const Token&) {}, [](int, Generation) {});
  scheduler.lookup.num_tokens = 2;
  scheduler.drafter = &drafter;
  scheduler.rate.now = [&] { return engine.now; };
  RowOptions options;
  options.stopping = {.max_new_tokens = 20, .ignore_eos = true};
  for (const int number : {0, 1, 2}) scheduler.submit(number, {321, 1682, 40 + number}, options);
  for (int pass = 0; pass < 4; ++pass) scheduler.pass();
  REQUIRE(drafter.counts.size() == 4);
  CHECK(drafter.counts[0] == Tokens{1, 1, 1});  // with the prompts
  CHECK(drafter.counts[1] == Tokens{0, 0, 0});  // a pass without drafts, to compare with
  CHECK(drafter.counts[2] == Tokens{2, 0, 0});
  CHECK(drafter.counts[3] == Tokens{2, 2, 2});
}

TEST_CASE("a text ends where it does alone, though all drafts beyond its end are right") {
  struct Prophet : RowDrafter {
    Tokens text = {};
    std::vector<Tokens> propose(std::span<const Row> rows, std::span<const int> counts) override {
      std::vector<Tokens> drafts(rows.size());
      for (std::size_t r = 0; r < rows.size(); ++r) {
        const auto from = text.begin() + std::min(std::ssize(rows[r].tokens), std::ssize(text));
        drafts[r].assign(from, from + std::min<std::ptrdiff_t>(counts[r], text.end() - from));
      }
      return drafts;
    }
  };
  const auto alone = [](const RowOptions& options) {
    StaticKvCache cache(target(), 1);
    return generate(target(), tokenizer(), {{321, 1682}}, 1, options, 1, cache, [](int, const Token&) {})[0];
  };
  RowOptions options;
  options.stopping = {.max_new_tokens = 60, .ignore_eos = true};
  Prophet drafter;
  drafter.text = alone(options).tokens;
  const Tokens inside(drafter.text.begin() + 30, drafter.text.begin() + 33);
  options.stop.sequences = {tokenizer().decode(inside)};
  PagedKvCache cache(target(), 1, 32);
  ClockedEngine engine(target(), cache);
  Generation found;
  ModelDraftingScheduler scheduler(
      engine, tokenizer(), 1, {}, [](int, const Token&) {},
      [&](int, Generation text) { found = std::move(text); });
  scheduler.lookup.num_tokens = 16;
  scheduler.drafter = &drafter;
  scheduler.rate.now = [&] { return engine.now; };
  scheduler.submit(0, {321, 1682}, options);
  for (int pass = 0; !scheduler.idle() && pass < 100; ++pass) scheduler.pass();
  const Generation expected = alone(options);
  REQUIRE(expected.finish_reason == FinishReason::kStop);
  CHECK(found.tokens == expected.tokens);
  CHECK(found.finish_reason == FinishReason::kStop);
  CHECK(scheduler.accepted > 0);
}

TEST_CASE("the time of the draft model counts, so rows draft less where it takes long") {
  struct Slow : RowDraftModel {
    using RowDraftModel::RowDraftModel;
    double* now = nullptr;
    double ms = 0.0;
    std::vector<Tokens> propose(std::span<const Row> rows, std::span<const int> counts) override {
      std::vector<Tokens> drafts = RowDraftModel::propose(rows, counts);
      for (const Tokens& own : drafts) *now += ms * static_cast<double>(own.size());
      return drafts;
    }
  };
  std::vector<std::int64_t> drafted;
  for (const double ms : {0.01, 2.0}) {
    PagedKvCache cache(target(), 1, 32);
    ClockedEngine engine(target(), cache);
    Slow drafter(smaller(), 1);
    drafter.now = &engine.now;
    drafter.ms = ms;
    ModelDraftingScheduler scheduler(
        engine, tokenizer(), 1, {}, [](int, const Token&) {}, [](int, Generation) {});
    scheduler.lookup.num_tokens = 4;
    scheduler.drafter = &drafter;
    scheduler.rate.now = [&] { return engine.now; };
    RowOptions options;
    options.stopping = {.max_new_tokens = 100, .ignore_eos = true};
    scheduler.submit(0, {321, 1682}, options);
    while (!scheduler.idle()) scheduler.pass();
    drafted.push_back(scheduler.drafted);
  }
  CHECK(drafted[1] * 3 < drafted[0]);
}

TEST_CASE("without a drafter the text itself proposes, as in step 121") {
  std::vector<Tokens> texts;
  std::vector<std::int64_t> accepted;
  const auto run = [&](auto& scheduler) {
    scheduler.lookup.num_tokens = 4;
    RowOptions options;
    options.stopping = {.max_new_tokens = 60, .ignore_eos = true};
    scheduler.submit(0, {321, 1682}, options);
    while (!scheduler.idle()) scheduler.pass();
    accepted.push_back(scheduler.accepted);
  };
  const auto keep = [&](int, const Generation& text) { texts.push_back(text.tokens); };
  PagedKvCache cache(target(), 1, 32), other(target(), 1, 32);
  ClockedEngine engine(target(), cache), other_engine(target(), other);
  DraftingScheduler drafting(
      engine, tokenizer(), 1, {}, [](int, const Token&) {}, keep);
  drafting.rate.now = [&] { return engine.now; };
  ModelDraftingScheduler model_drafting(
      other_engine, tokenizer(), 1, {}, [](int, const Token&) {}, keep);
  model_drafting.rate.now = [&] { return other_engine.now; };
  run(drafting);
  run(model_drafting);
  CHECK(texts[0] == texts[1]);
  CHECK(accepted[0] == accepted[1]);
  CHECK(accepted[0] > 0);
}

TEST_CASE("the beams of a search keep its turn: texts that arrived later wait until it ends") {
  PagedKvCache cache(target(), 2, 64);
  PagedEngine engine(target(), cache);
  std::vector<int> ended;
  TurnScheduler scheduler(
      engine, tokenizer(), 2, {}, [](int, const Token&) {},
      [&](int number, const Generation&) { ended.push_back(number); });
  const Tokens prompt = tokenizer().encode("Once upon a time");
  RowOptions options, searching;
  options.stopping = {.max_new_tokens = 40, .ignore_eos = true};
  searching.stopping = {.max_new_tokens = 6, .ignore_eos = true};
  searching.extras.search = std::make_shared<BeamOptions>(BeamOptions{.num_beams = 2});
  scheduler.submit(0, prompt, searching);
  scheduler.submit(1, prompt, searching);
  scheduler.pass();
  for (int number = 2; number < 6; ++number) scheduler.submit(number, prompt, options);
  while (!scheduler.idle()) scheduler.pass();
  CHECK(ended == std::vector<int>{0, 1, 2, 3, 4, 5});
}

}  // namespace
}  // namespace staircase
