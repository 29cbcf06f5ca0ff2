#include <doctest/doctest.h>

#include <random>

#include "arrivals.h"
#include "common/decoding/drafted_engine.h"
#include "drafts.h"
#include "generate.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

/// A prompt of this many tokens, from a text that the model wrote.
std::vector<int> prompt(int length, int first = 0) {
  const auto& run = reference("sliding.json");
  std::vector<int> tokens = run["prompt_ids"].get<std::vector<int>>();
  const std::vector<int> ids = run["ids"];
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  REQUIRE(std::ssize(tokens) >= first + length);
  return {tokens.begin() + first, tokens.begin() + first + length};
}

/// A text twice, then its beginning again, so the next tokens are easy to guess.
std::vector<int> refrain(int length, int first = 0) {
  const std::vector<int> once = prompt(length, first);
  std::vector<int> text = once;
  text.insert(text.end(), once.begin(), once.end());
  text.insert(text.end(), once.begin(), once.begin() + length / 2);
  return text;
}

/// An engine with its own clock, on which passes take as long as a check sets.
struct ClockedEngine : DraftedEngine {
  using DraftedEngine::DraftedEngine;
  double now = 0.0, ms = 1.0, ms_per_token = 0.0;
  std::vector<std::vector<int>> fed = {};  // tokens of each row, in each pass

  Logits forward(std::span<const std::span<const int>> sequences) override {
    fed.emplace_back();
    for (const std::span<const int> sequence : sequences)
      fed.back().push_back(static_cast<int>(sequence.size()));
    now += ms + ms_per_token * std::reduce(fed.back().begin(), fed.back().end());
    return DraftedEngine::forward(sequences);
  }
};

RowOptions greedy(int new_tokens) {
  RowOptions options;
  options.stopping = {.max_new_tokens = new_tokens, .ignore_eos = true};
  return options;
}

Generation alone(const std::vector<int>& tokens, const RowOptions& options) {
  StaticKvCache own(tales(), 1);
  return generate(tales(), tales_tokenizer(), {tokens}, 1, options, 1, own, [](int, const Token&) {})[0];
}

/// A batch that continues texts, with drafts of up to `most` tokens.
struct Speculated {
  PagedKvCache cache;
  ClockedEngine engine;
  std::map<int, Generation> texts = {};
  std::map<int, std::vector<int>> tokens = {};  // as they came
  DraftingScheduler scheduler;

  Speculated(int slots, int blocks, int most, std::optional<int> chunk = {})
      : cache(tales(), slots, blocks),
        engine(tales(), cache),
        scheduler(
            engine, tales_tokenizer(), slots, {chunk},
            [this](int number, const Token& token) { tokens[number].push_back(token.id); },
            [this](int number, Generation text) { texts[number] = std::move(text); }) {
    scheduler.lookup.num_tokens = most;
    scheduler.rate.now = [this] { return engine.now; };
  }

  /// A token costs 1 ms, and a pass takes 10 on average.
  void learn_costs() {
    engine.ms = 8.0;
    engine.ms_per_token = 1.0;
    for (int pass = 0; pass < 100; ++pass) {
      scheduler.rate.begin_pass();
      engine.now += 8.0 + (pass % 2 == 0 ? 1 : 3);
      scheduler.rate.end_pass(pass % 2 == 0 ? 1 : 3, 1);
    }
  }

  void run() {
    for (int pass = 0; !scheduler.idle() && pass < 2000; ++pass) scheduler.pass();
    CHECK(scheduler.idle());
  }
};

}  // namespace

TEST_CASE("a text that repeats itself takes fewer passes, and is the same as alone") {
  Speculated batch(1, 32, 8);
  const std::vector<int> tokens = refrain(40);
  batch.scheduler.submit(0, tokens, greedy(30));
  batch.run();
  CHECK(batch.texts[0].tokens == alone(tokens, greedy(30)).tokens);
  CHECK(std::ssize(batch.engine.fed) < 20);
  CHECK(batch.scheduler.accepted > 10);
  // The prompt's pass has no draft. In every other pass, one token is the newest and the rest are drafts.
  int drafts = 0;
  for (std::size_t pass = 1; pass < batch.engine.fed.size(); ++pass) drafts += batch.engine.fed[pass][0] - 1;
  CHECK(batch.scheduler.drafted == drafts);
  CHECK(std::ssize(batch.engine.fed) == 30 - batch.scheduler.accepted);
  CHECK(batch.tokens[0] == std::vector<int>(batch.texts[0].tokens.end() - 30, batch.texts[0].tokens.end()));
}

TEST_CASE("a draft is never longer than the option, nor than what the text may still grow") {
  for (const int most : {1, 3, 8}) {
    CAPTURE(most);
    Speculated batch(1, 32, most);
    batch.scheduler.submit(0, refrain(40), greedy(12));
    batch.run();
    int left = 11, longest = 0;
    for (std::size_t pass = 1; pass < batch.engine.fed.size(); ++pass) {
      const int drafts = batch.engine.fed[pass][0] - 1;
      CHECK(drafts <= std::min(most, left - 1));
      longest = std::max(longest, drafts);
      left -= 1;  // at least
    }
    CHECK(longest == std::min(most, 8));
    CHECK(batch.texts[0].tokens.size() == refrain(40).size() + 12);
  }
}

TEST_CASE("without the option nothing is drafted") {
  Speculated batch(1, 32, 8);
  batch.scheduler.lookup.num_tokens.reset();
  batch.scheduler.submit(0, refrain(40), greedy(12));
  batch.run();
  CHECK(batch.scheduler.drafted == 0);
  CHECK(std::ssize(batch.engine.fed) == 12);
}

TEST_CASE("drafts save time where passes cost more than tokens, and lose little where tokens cost it all") {
  const auto time = [](double ms, double ms_per_token, std::optional<int> most) {
    Speculated batch(4, 128, 8);
    batch.scheduler.lookup.num_tokens = most;
    batch.engine.ms = ms;
    batch.engine.ms_per_token = ms_per_token;
    for (int i = 0; i < 4; ++i) batch.scheduler.submit(i, prompt(60, 70 * i), greedy(200));
    batch.run();
    return batch.engine.now;
  };
  CHECK(time(1.0, 0.0, 8) < 0.7 * time(1.0, 0.0, {}));
  CHECK(time(1.0, 0.1, 8) < 0.9 * time(1.0, 0.1, {}));
  CHECK(time(0.0, 1.0, 8) < 1.02 * time(0.0, 1.0, {}));
}

TEST_CASE("a row drafts as long as the whole draft pays, and more after it was right") {
  Speculated batch(1, 32, 8);
  batch.learn_costs();  // so a draft must bring 0.1: 0.5³ is more, and 0.5⁴ is less
  batch.scheduler.submit(0, refrain(40), greedy(40));
  batch.run();
  CHECK(batch.engine.fed[1] == std::vector{1 + 3});
  int longest = 0;
  for (std::size_t pass = 1; pass < batch.engine.fed.size(); ++pass)
    longest = std::max(longest, batch.engine.fed[pass][0] - 1);
  CHECK(longest == 8);
}

TEST_CASE("a row that has given up drafts again after some passes") {
  Speculated batch(1, 32, 8);
  batch.learn_costs();
  RowOptions options = greedy(40);
  options.extras.chance = 0.05;  // below the 0.1 that a draft must bring; 0.995¹¹ · 0.95 is below 0.9
  batch.scheduler.submit(0, refrain(40), options);
  batch.run();
  for (int pass = 1; pass <= 5; ++pass) CHECK(batch.engine.fed[pass] == std::vector{1});
  CHECK(batch.scheduler.drafted > 0);
  CHECK(batch.texts[0].tokens == alone(refrain(40), greedy(40)).tokens);
}

TEST_CASE("a text that ends within its drafts has no token after its end") {
  const std::vector<int> tokens = refrain(40);
  const std::vector<int> whole = alone(tokens, greedy(24)).tokens;
  bool within = false;
  for (int end = 1; end <= 20; ++end) {
    CAPTURE(end);
    RowOptions options = greedy(24);
    const auto last = whole.begin() + static_cast<std::ptrdiff_t>(tokens.size()) + end;
    options.stop.sequences = {tales_tokenizer().decode(std::vector<int>(last - 1, last))};
    const Generation expected = alone(tokens, options);
    Speculated batch(1, 32, 8);
    batch.scheduler.submit(0, tokens, options);
    batch.run();
    CHECK(batch.texts[0].tokens == expected.tokens);
    CHECK(batch.texts[0].finish_reason == FinishReason::kStop);
    CHECK(tokens.size() + batch.tokens[0].size() == expected.tokens.size());
    within = within || batch.engine.fed.back()[0] > 1;
  }
  CHECK(within);
}

TEST_CASE("a row whose drafts are right drafts more than one whose drafts are wrong") {
  Speculated batch(2, 64, 8);
  batch.engine.ms = 8.0;
  batch.engine.ms_per_token = 1.0;
  batch.scheduler.submit(0, refrain(40), greedy(40));
  RowOptions wild = greedy(40);
  wild.sampling = {.do_sample = true, .temperature = 3.0f};
  batch.scheduler.submit(1, refrain(40, 100), wild);
  std::vector<int> sums(2);
  batch.scheduler.pass();
  while (batch.texts.empty()) {
    batch.scheduler.pass();
    for (std::size_t r = 0; r < 2; ++r) sums[r] += batch.engine.fed.back()[r] - 1;
  }
  CHECK(sums[0] > 2 * sums[1]);
}

TEST_CASE("what was rejected leaves the cache, and other texts share only what is certain") {
  Speculated batch(2, 64, 8);
  RowOptions wild = greedy(20);
  wild.sampling = {.do_sample = true, .temperature = 0.8f};
  const std::vector<int> tokens = refrain(40);
  batch.scheduler.submit(0, tokens, wild);
  for (int pass = 0; pass < 19 && batch.texts.empty(); ++pass) {
    batch.scheduler.pass();
    if (!batch.texts.empty()) break;
    // The newest token has never been fed.
    CHECK(batch.cache.length(0) == std::ssize(tokens) + std::ssize(batch.tokens[0]) - 1);
    std::vector<int> text = tokens;
    text.insert(text.end(), batch.tokens[0].begin(), batch.tokens[0].end());
    const std::vector<int> same = text;
    text.insert(text.end(), 2 * kBlockSize, 7);
    batch.cache.share(1, text);
    CHECK(batch.cache.length(1) == (std::ssize(same) - 1) / kBlockSize * kBlockSize);
    batch.cache.truncate(1, 0);
  }
  CHECK(batch.scheduler.drafted > batch.scheduler.accepted);
}

TEST_CASE("a draft without a block is left out, and no text gives way to it") {
  for (const int most : {0, 8}) {
    CAPTURE(most);
    Speculated batch(2, 7, most);
    if (most == 0) batch.scheduler.lookup.num_tokens.reset();
    for (int i = 0; i < 2; ++i) batch.scheduler.submit(i, refrain(18, 50 * i), greedy(3));
    batch.run();
    CHECK(batch.scheduler.preempted() == 0);
    for (int i = 0; i < 2; ++i) CHECK(batch.texts[i].tokens == alone(refrain(18, 50 * i), greedy(3)).tokens);
  }
}

TEST_CASE("every text is the same as alone, with any options, priorities and few blocks") {
  std::mt19937 generator(5);
  const auto random = [&](int count) { return static_cast<int>(generator() % static_cast<unsigned>(count)); };
  int preempted = 0, accepted = 0, rejected = 0;
  for (int round = 0; round < 8; ++round) {
    const int slots = 1 + round % 4, blocks = 9 + 3 * (round % 3);
    Speculated batch(slots, blocks, 1 + random(8), round % 2 == 0 ? std::optional<int>(9) : std::nullopt);
    batch.engine.ms_per_token = 0.2 * (round % 3);
    std::map<int, Request> requests;
    std::vector<int> cancelled;
    batch.scheduler.patience = 1 + 7 * (round % 3);
    for (int i = 0; i < 9; ++i) {
      Request request{i, 0.0,
                      i % 3 == 0 ? prompt(1 + random(60), random(300)) : refrain(4 + random(20), random(300)),
                      greedy(1 + random(30))};
      SamplingOptions& sampling = request.options.sampling;
      sampling = {.do_sample = i % 2 == 1, .temperature = 0.7f};
      sampling.seed = static_cast<unsigned>(i);
      if (i % 4 == 1) sampling.top_k = 5;
      if (i % 4 == 2) sampling.repetition_penalty = 1.3f;
      if (i % 4 == 3) sampling.top_p = 0.9f;
      if (i % 5 == 0) request.options.stop.sequences = {"the "};
      if (i % 5 == 1) {
        request.options.stopping.ignore_eos = false;
        request.options.length.min_new_tokens = request.options.stopping.max_new_tokens / 2;
      }
      if (i % 5 == 2) request.options.logprobs.count = 2;
      request.options.extras.priority = i % 3;
      requests.emplace(i, request);
      batch.scheduler.submit(i, request.prompt, request.options);
      for (int passes = random(3); passes > 0; --passes) batch.scheduler.pass();
      if (i == 6) {
        batch.scheduler.cancel(5);
        cancelled.push_back(5);
      }
    }
    batch.run();
    preempted += batch.scheduler.preempted();
    accepted += batch.scheduler.accepted;
    rejected += batch.scheduler.drafted - batch.scheduler.accepted;
    for (const auto& [number, request] : requests) {
      CAPTURE(round);
      CAPTURE(number);
      if (batch.texts.count(number) == 0) {
        CHECK(std::ranges::count(cancelled, number) == 1);
        continue;
      }
      const Generation expected = alone(request.prompt, request.options);
      CHECK(batch.texts[number].tokens == expected.tokens);
      CHECK(batch.texts[number].finish_reason == expected.finish_reason);
    }
    CHECK(batch.cache.reserve(0, blocks * kBlockSize));  // all blocks are there again
  }
  CHECK(preempted > 5);
  CHECK(accepted > 50);
  CHECK(rejected > 50);
}

TEST_CASE("the program prints how many drafts were right, and the texts are the same without any") {
  const std::string usual = "--requests - --json --ignore-eos --max-new-tokens 30";
  const std::string lines =
      "{\"prompt\": \"The fox and the wolf, the fox and the wolf, the fox and the\"}\n"
      "{\"prompt\": \"One, two, three, one, two, three, one, two\"}\n";
  const ProgramRun plain = run_program(STAIRCASE_STEP_PROGRAM, usual, lines);
  const ProgramRun drafted =
      run_program(STAIRCASE_STEP_PROGRAM, usual + " --prompt-lookup-num-tokens 4", lines);
  REQUIRE(plain.status == 0);
  REQUIRE(drafted.status == 0);
  CHECK(plain.json()["sequences"] == drafted.json()["sequences"]);
  CHECK(contains(plain.err, "\n0 of 0 drafts accepted\n"));
  CHECK(!contains(drafted.err, "\n0 of 0 drafts accepted\n"));
  CHECK(contains(drafted.err, " drafts accepted\n"));
  auto stats = plain.json()["stats"];
  CHECK(contains(plain.err, fmt::format("; 0 of {} tokens of texts that joined were in the cache",
                                        stats["prompt_tokens"].get<int>())));
  CHECK(contains(plain.err, fmt::format(" {:.1f} % of their positions filled",
                                        100.0 * stats["cache_filled"].get<double>())));
}

TEST_CASE("drafts need requests") {
  CHECK(contains(run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 1 --prompt-lookup-num-tokens 5").err,
                 "--prompt-lookup-num-tokens does nothing without --requests"));
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--prompt-lookup-num-tokens 0").status == 2);
}

TEST_CASE("requests have the cache, and one text each") {
  for (const char* wrong : {"--no-use-cache", "--do-sample --num-return-sequences 2"}) {
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM, fmt::format("--requests - {}", wrong), "{\"prompt\": \"A\"}\n");
    CHECK(run.status == 2);
    CHECK(run.err == "error: --requests cannot be combined with --num-return-sequences or --no-use-cache\n");
  }
  CHECK(contains(run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 1 --prefill-chunk 8").err,
                 "--prefill-chunk does nothing without --requests"));
}
