#include <doctest/doctest.h>

#include <random>

#include "arrivals.h"
#include "generate.h"
#include "paged_engine.h"
#include "priorities.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/toy_engine.h"

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

/// A request, and after how many passes it arrives.
struct Asked {
  int priority, tokens, new_tokens, comes = 0;
};

using Passes = std::vector<std::vector<int>>;

/// Serves texts, numbered from 0. Returns the passes in which each got a token.
Passes passes_of(const std::vector<Asked>& asked, Engine& engine, int slots, std::optional<int> chunk = {},
                 int patience = 100) {
  Passes passes(asked.size());
  std::vector<Generation> texts(asked.size());
  int pass = 0;
  PriorityScheduler scheduler(
      engine, tales_tokenizer(), slots, {chunk},
      [&](int number, const Token&) { passes[static_cast<std::size_t>(number)].push_back(pass); },
      [&](int number, Generation text) { texts[static_cast<std::size_t>(number)] = std::move(text); });
  scheduler.patience = patience;
  const auto served = [&] {
    return std::ranges::none_of(texts, [](const Generation& text) { return text.tokens.empty(); });
  };
  while (!served() && pass < 200) {
    for (int number = 0; number < std::ssize(asked); ++number) {
      const Asked& one = asked[static_cast<std::size_t>(number)];
      if (one.comes != pass) continue;
      RowOptions options;
      options.stopping = {.max_new_tokens = one.new_tokens, .ignore_eos = true};
      options.extras.priority = one.priority;
      scheduler.submit(number, prompt(one.tokens, 30 * number), options);
    }
    ++pass;
    scheduler.pass();
  }
  CHECK(scheduler.idle());
  return passes;
}

Passes toy_passes_of(const std::vector<Asked>& asked, int slots, std::optional<int> chunk = {},
                     int patience = 100) {
  ToyEngine engine(slots);
  return passes_of(asked, engine, slots, chunk, patience);
}

}  // namespace

TEST_CASE("an urgent text takes the slot of another, which goes on afterwards") {
  CHECK(toy_passes_of({{1, 3, 4}, {0, 3, 2, 1}}, 1) == Passes{{1, 2, 5, 6}, {3, 4}});
  CHECK(toy_passes_of({{1, 3, 4}, {1, 3, 2, 1}}, 1) == Passes{{1, 2, 3, 4}, {5, 6}});
  CHECK(toy_passes_of({{0, 3, 4}, {1, 3, 2, 1}}, 1) == Passes{{1, 2, 3, 4}, {5, 6}});
}

TEST_CASE("with free slots, none gives way") {
  CHECK(toy_passes_of({{1, 3, 4}, {0, 3, 2, 1}}, 2) == Passes{{1, 2, 3, 4}, {2, 3}});
}

TEST_CASE("of waiting texts the most urgent joins first, and of equal ones the first that came") {
  CHECK(toy_passes_of({{0, 3, 2}, {2, 3, 1}, {1, 3, 1}, {2, 3, 1}, {1, 3, 1}}, 1) ==
        Passes{{1, 2}, {5}, {3}, {6}, {4}});
}

TEST_CASE("of growing texts the last in turn gives way, and of equal ones the newest") {
  CHECK(toy_passes_of({{2, 3, 3}, {1, 3, 5}, {1, 3, 5}, {0, 3, 3, 1}, {0, 3, 3, 1}}, 3) ==
        Passes{{1, 2, 6}, {1, 2, 3, 4, 5}, {1, 2, 3, 6, 7}, {3, 4, 5}, {4, 5, 6}});
}

TEST_CASE("the chunk of a long prompt goes to an urgent one") {
  const std::vector<Asked> asked{{1, 20, 1}, {0, 2, 2, 1}};
  CHECK(toy_passes_of(asked, 2, 4)[1] == std::vector<int>{3, 4});
  CHECK(toy_passes_of(asked, 2, 4, 0)[1] == std::vector<int>{6, 7});
}

TEST_CASE("a text lets others pass for as long as its patience lasts, and no longer") {
  for (const int patience : {0, 1, 3, 8}) {
    CAPTURE(patience);
    std::vector<Asked> asked{{0, 2, 1}, {1, 2, 2}, {0, 2, 1}};
    for (int comes = 1; comes < 12; ++comes) asked.push_back({0, 2, 1, comes});
    const Passes passes = toy_passes_of(asked, 1, {}, patience);
    // Before the text come the first two, and one for each pass of its patience but the first.
    const int begins = patience == 0 ? 2 : 2 + patience;
    CHECK(passes[1] == std::vector<int>{begins, begins + 1});
  }
}

TEST_CASE("a priority counts as often as it says") {
  // Turns 0, 6, 4, 5: two units of patience 3, and texts that come in passes 4 and 5.
  CHECK(toy_passes_of({{0, 2, 6}, {2, 2, 1}, {0, 2, 1, 4}, {0, 2, 1, 5}}, 1, {}, 3) ==
        Passes{{1, 2, 3, 4, 5, 6}, {9}, {7}, {8}});
}

TEST_CASE("without blocks for all, the last in turn gives way, though it came first") {
  PagedKvCache cache(tales(), 2, 2);
  PagedEngine engine(tales(), cache);
  CHECK(passes_of({{1, 16, 3}, {0, 16, 3}}, engine, 2) == Passes{{1, 4, 5}, {1, 2, 3}});
  CHECK(cache.reserve(0, 2 * kBlockSize));  // all blocks are there again
}

TEST_CASE(
    "a text that gave its blocks away waits in its turn: a more urgent one takes the rest in the same pass") {
  PagedKvCache cache(tales(), 3, 4);
  PagedEngine engine(tales(), cache);
  CHECK(passes_of({{0, 16, 3}, {2, 33, 3}, {1, 1, 1, 1}}, engine, 3) == Passes{{1, 2, 3}, {1, 4, 5}, {2}});
}

TEST_CASE("an urgent text that finds no block takes those of others") {
  PagedKvCache cache(tales(), 2, 2);
  PagedEngine engine(tales(), cache);
  CHECK(passes_of({{1, 20, 4}, {0, 16, 1, 1}}, engine, 2) == Passes{{1, 2, 4, 5}, {3}});
}

TEST_CASE("every text is the same as alone, whatever the priorities") {
  std::mt19937 generator(4);
  int preempted = 0;
  for (int round = 0; round < 8; ++round) {
    std::vector<Request> requests;
    for (int i = 0; i < 9; ++i) {
      Request request{i, static_cast<double>(generator() % 12),
                      prompt(1 + static_cast<int>(generator() % 60), static_cast<int>(generator() % 300))};
      request.options.stopping = {.max_new_tokens = 1 + static_cast<int>(generator() % 30),
                                  .ignore_eos = true};
      request.options.sampling = {.do_sample = i % 2 == 1, .temperature = 1.1f};
      request.options.sampling.seed = static_cast<unsigned>(i);
      request.options.extras.priority = static_cast<int>(generator() % 4);
      requests.push_back(request);
    }
    const int slots = 1 + round % 4, blocks = 6 + 3 * (round % 3);
    PagedKvCache cache(tales(), slots, blocks);
    struct SlowEngine : PagedEngine {
      using PagedEngine::PagedEngine;
      double now = 0.0;
      Logits forward(std::span<const std::span<const int>> sequences) override {
        now += 1.0;
        return PagedEngine::forward(sequences);
      }
    } engine(tales(), cache);
    std::vector<Generation> texts(requests.size());
    PriorityScheduler scheduler(
        engine, tales_tokenizer(), slots, {round % 2 == 0 ? std::optional<int>(9) : std::nullopt},
        [](int, const Token&) {},
        [&](int number, Generation text) { texts[static_cast<std::size_t>(number)] = std::move(text); });
    scheduler.patience = 1 + 7 * (round % 3);
    serve(scheduler, requests,
          {[&] { return engine.now; }, [&](double time) { engine.now = std::max(engine.now, time); }});
    preempted += scheduler.preempted();
    for (const Request& request : requests) {
      CAPTURE(round);
      CAPTURE(request.number);
      StaticKvCache own(tales(), 1);
      const Generation alone = generate(tales(), tales_tokenizer(), {request.prompt}, 1, request.options, 1,
                                        own, [](int, const Token&) {})[0];
      CHECK(texts[static_cast<std::size_t>(request.number)].tokens == alone.tokens);
    }
    CHECK(cache.reserve(0, blocks * kBlockSize));  // all blocks are there again
  }
  CHECK(preempted > 10);
}

TEST_CASE("the program reads the priority of each line, and prints how long each priority waited") {
  const std::string usual = "--requests - --json --ignore-eos --max-batch-size 1 --max-new-tokens 2";
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, usual,
                                     "{\"prompt\": \"The wolf\", \"priority\": 7}\n"
                                     "{\"prompt\": \"The fox\"}\n"
                                     "{\"prompt\": \"A crow\", \"priority\": 0}\n");
  REQUIRE(run.status == 0);
  auto stats = run.json()["stats"];
  CHECK(stats.contains("ttft_ms_p99_priority_0"));
  CHECK(stats.contains("ttft_ms_p99_priority_7"));
  CHECK(stats["ttft_ms_p99_priority_0"] < stats["ttft_ms_p99_priority_7"]);
  CHECK(contains(run.err, "priority 0: TTFT "));
  CHECK(contains(run.err, " ms (p99 of 2)\n"));
  CHECK(contains(run.err, "priority 7: TTFT "));
  CHECK(contains(run.err, " ms (p99 of 1)\n"));
  // Nothing is shared. The end of a text is not counted.
  const std::size_t prompts = stats["prompt_tokens"];
  CHECK(contains(run.err, fmt::format("; 0 of {} tokens of texts that joined were in the cache", prompts)));
  CHECK(stats["cache_filled"] > 0.0);
  CHECK(contains(run.err, fmt::format(" {:.1f} % of their positions filled",
                                      100.0 * stats["cache_filled"].get<double>())));
}

TEST_CASE("a priority that is none is refused with its line, and --patience needs requests") {
  for (const char* priority : {"-1", "101", "1.5", "\"high\""}) {
    CAPTURE(priority);
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM, "--requests - --max-new-tokens 1",
                    fmt::format("{{\"prompt\": \"The wolf\", \"priority\": {}}}\n", priority));
    CHECK(run.status == 1);
    CHECK(contains(run.err, "error: --requests -, line 1: priority"));
  }
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--patience -1").status == 2);
  CHECK(contains(run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 1 --patience 5").err,
                 "--patience does nothing without --requests"));
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
