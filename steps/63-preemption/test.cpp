#include <doctest/doctest.h>

#include <map>
#include <random>

#include "arrivals.h"
#include "generate.h"
#include "paged_engine.h"
#include "preemption.h"
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

struct Load {
  std::vector<Request> requests = {};

  void add(double arrival, std::vector<int> tokens, int count, bool do_sample = false) {
    Request request{static_cast<int>(requests.size()), arrival, std::move(tokens)};
    request.options.stopping = {.max_new_tokens = count, .ignore_eos = requests.size() % 3 > 0};
    request.options.sampling = {.do_sample = do_sample, .temperature = 1.1f};
    request.options.sampling.seed = static_cast<unsigned>(requests.size());
    requests.push_back(std::move(request));
  }

  std::vector<Generation> alone() const {
    std::vector<Generation> texts;
    for (const Request& request : requests) {
      StaticKvCache cache(tales(), 1);
      texts.push_back(generate(tales(), tales_tokenizer(), {request.prompt}, 1, request.options, 1, cache,
                               [](int, const Token&) {})[0]);
    }
    return texts;
  }
};

Load mixed_load(unsigned seed) {
  Load load;
  std::mt19937 generator(seed);
  for (int i = 0; i < 9; ++i) {
    const int length = i % 4 == 3 ? 90 : 1 + static_cast<int>(generator() % 40);
    load.add(generator() % 12, prompt(length, static_cast<int>(generator() % 300)),
             1 + static_cast<int>(generator() % 40), i % 2 == 1);
  }
  return load;
}

/// A pass takes a second; `after_pass` is called at its end.
struct SlowEngine : PagedEngine {
  using PagedEngine::PagedEngine;
  double now = 0.0;
  std::function<void()> after_pass = [] {};

  Logits forward(std::span<const std::span<const int>> sequences) override {
    const Logits logits = PagedEngine::forward(sequences);
    now += 1.0;
    after_pass();
    return logits;
  }
};

struct Served {
  std::vector<Generation> texts;
  int preempted = 0;
};

Served served(const Load& load, SlowEngine& engine, int slots, std::optional<int> chunk) {
  Served served{std::vector<Generation>(load.requests.size())};
  PreemptingScheduler scheduler(
      engine, tales_tokenizer(), slots, {chunk}, [](int, const Token&) {},
      [&](int number, Generation text) { served.texts[number] = std::move(text); });
  serve(scheduler, load.requests,
        {[&] { return engine.now; }, [&](double time) { engine.now = std::max(engine.now, time); }});
  served.preempted = scheduler.preempted();
  return served;
}

void check_same(const std::vector<Generation>& got, const std::vector<Generation>& want) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    CHECK(got[i].tokens == want[i].tokens);
    CHECK(got[i].finish_reason == want[i].finish_reason);
  }
}

/// The number of positions in all rows of a cache.
int positions(const PagedKvCache& cache, int n_rows) {
  int sum = 0;
  for (int row = 0; row < n_rows; ++row) sum += cache.length(row);
  return sum;
}

/// Texts of these lengths, greedy and numbered from 0, all submitted at the start. `passes` lists the passes
/// in which each text got a token.
struct Together {
  PagedKvCache cache;
  PagedEngine engine{tales(), cache};
  std::vector<std::vector<int>> passes;
  int pass = 0;
  PreemptingScheduler scheduler;

  struct Asked {
    int tokens, new_tokens;
  };
  Together(int slots, int blocks, const std::vector<Asked>& asked)
      : cache(tales(), slots, blocks),
        passes(asked.size()),
        scheduler(
            engine, tales_tokenizer(), slots, {},
            [this](int number, const Token&) { passes[static_cast<std::size_t>(number)].push_back(pass); },
            [](int, const Generation&) {}) {
    for (int number = 0; number < std::ssize(asked); ++number) {
      RowOptions options;
      options.stopping = {.max_new_tokens = asked[static_cast<std::size_t>(number)].new_tokens,
                          .ignore_eos = true};
      scheduler.submit(number, prompt(asked[static_cast<std::size_t>(number)].tokens, 30 * number), options);
    }
    while (!scheduler.idle() && ++pass < 100) scheduler.pass();
  }
};

using Passes = std::vector<std::vector<int>>;

}  // namespace

TEST_CASE("a row that grows beyond its blocks is a mistake, and writes nowhere") {
  PagedKvCache cache(tales(), 2, 3);
  CHECK(cache.reserve(0, 17));
  CHECK_THROWS_AS(cache.append(0, 33), std::logic_error);
  CHECK(cache.length(0) == 0);
  cache.append(0, 32);
  CHECK_THROWS_AS(cache.append(0, 1), std::logic_error);
  CHECK_THROWS_AS(cache.append(1, 1), std::logic_error);
  CHECK(cache.length(0) == 32);
}

TEST_CASE("a row that finds the pool used up takes the blocks of the newest text, wherever its row is") {
  // The first text leaves its row and its block, which the second takes. Then the third needs a block.
  const Together got(4, 4, {{1, 1}, {16, 3}, {16, 3}, {10, 4}});
  CHECK(got.passes == Passes{{1}, {1, 2, 3}, {1, 2, 3}, {1, 4, 5, 6}});
  CHECK(got.scheduler.preempted() == 1);
}

TEST_CASE("the newest text releases its own blocks if it is the one that needs another") {
  const Together got(2, 2, {{10, 4}, {16, 2}});
  CHECK(got.passes == Passes{{1, 2, 3, 4}, {1, 5}});
  CHECK(got.scheduler.preempted() == 1);
}

TEST_CASE("preempted texts keep their turns: later ones wait until they have their blocks again") {
  // In pass 2, both the first and the second text need a block.
  const Together got(4, 3, {{16, 4}, {16, 3}, {10, 3}, {1, 1}});
  CHECK(got.passes == Passes{{1, 2, 3, 4}, {1, 5, 6}, {1, 5, 6}, {7}});
  CHECK(got.scheduler.preempted() == 2);
}

TEST_CASE("nothing is preempted while there is a free block for each that needs one") {
  const Together got(2, 4, {{16, 3}, {16, 3}});
  CHECK(got.passes == Passes{{1, 2, 3}, {1, 2, 3}});
  CHECK(got.scheduler.preempted() == 0);
}

TEST_CASE("every text is the same as alone, however often it is preempted") {
  int preempted = 0;
  for (const unsigned seed : {1u, 2u}) {
    const Load load = mixed_load(seed);
    const std::vector<Generation> want = load.alone();
    for (const int slots : {1, 3, 9}) {
      for (const int blocks : {9, 12, 20, 100}) {  // the longest text takes 9
        for (const std::optional<int> chunk : {std::optional<int>(), {7}}) {
          CAPTURE(slots);
          CAPTURE(blocks);
          CAPTURE(chunk.value_or(0));
          PagedKvCache cache(tales(), slots, blocks);
          SlowEngine engine(tales(), cache);
          const Served got = served(load, engine, slots, chunk);
          check_same(got.texts, want);
          CHECK(positions(cache, slots) == 0);
          CHECK(cache.reserve(0, blocks * kBlockSize));  // all blocks are there again
          if (slots == 1 || blocks == 100) CHECK(got.preempted == 0);
          preempted += got.preempted;
        }
      }
    }
  }
  CHECK(preempted > 20);
}

TEST_CASE("an earlier text has its last token no later than without the later ones") {
  Load load;
  for (int i = 0; i < 6; ++i) load.add(0.0, prompt(20, 10 * i), 41);
  for (Request& request : load.requests) request.options.stopping.ignore_eos = true;
  PagedKvCache cache(tales(), 6, 9);
  std::vector<int> order;
  PagedEngine engine(tales(), cache);
  PreemptingScheduler scheduler(
      engine, tales_tokenizer(), 6, {}, [](int, const Token&) {},
      [&](int number, const Generation&) { order.push_back(number); });
  for (const Request& request : load.requests) {
    scheduler.submit(request.number, request.prompt, request.options);
  }
  int passes = 0, first = 0;
  for (; !scheduler.idle(); ++passes) {
    scheduler.pass();
    if (order.empty()) first = passes + 2;
  }
  CHECK(first == 41);  // the first text never waits
  CHECK(order == std::vector<int>{0, 1, 2, 3, 4, 5});
  CHECK(scheduler.preempted() > 0);
}

TEST_CASE("texts may be cancelled while they wait for blocks") {
  std::mt19937 generator(11);
  for (int round = 0; round < 8; ++round) {
    const Load load = mixed_load(20 + static_cast<unsigned>(round));
    const std::vector<Generation> want = load.alone();
    PagedKvCache cache(tales(), 4, 9);
    std::map<int, Generation> texts;
    PagedEngine engine(tales(), cache);
    PreemptingScheduler scheduler(
        engine, tales_tokenizer(), 4, {8}, [](int, const Token&) {},
        [&](int number, Generation text) { texts[number] = std::move(text); });
    for (const Request& request : load.requests) {
      scheduler.submit(request.number, request.prompt, request.options);
    }
    for (int i = 0; !scheduler.idle(); ++i) {
      scheduler.pass();
      if (i % 5 == 0) scheduler.cancel(static_cast<int>(generator() % load.requests.size()));
    }
    int others = 0;
    for (const auto& [number, text] : texts) {
      others += text.tokens != want[static_cast<std::size_t>(number)].tokens;
    }
    // On a GPU, the last digits depend on the neighbouring rows, and a sampled token may depend on them.
    CHECK(others <= (tests_are_for_gpu() ? 1 : 0));
    CHECK(cache.reserve(0, 9 * kBlockSize));
  }
}

TEST_CASE("a row wastes less than one block, in every pass") {
  const Load load = mixed_load(3);
  PagedKvCache cache(tales(), 9, 9 * 32);
  SlowEngine engine(tales(), cache);
  int most = 0;
  engine.after_pass = [&] {
    int needed = 0;
    for (int row = 0; row < 9; ++row) needed += blocks_for(cache.length(row));
    most = std::max(most, needed);
  };
  served(load, engine, 9, {});
  CHECK(cache.most_blocks() == most);
}

TEST_CASE("a pool too small for a text, or of no block, is refused") {
  const auto run = [](const std::string& blocks, int count) {
    return run_program(STAIRCASE_STEP_PROGRAM, "--requests - --json --ignore-eos --kv-blocks " + blocks,
                       fmt::format("{{\"prompt\": \"The wolf\", \"max_new_tokens\": {}}}\n", count));
  };
  CHECK(run("2", 31).status == 0);
  const ProgramRun longer = run("2", 32);
  CHECK(longer.status == 1);
  CHECK(longer.err ==
        "error: --requests -, line 1: a prompt of 2 tokens and 32 new ones do not fit into "
        "32 positions\n");
  CHECK(run("1000", 511).status == 0);
  CHECK(contains(run("1000", 512).err, "do not fit into 512 positions"));
  for (const char* blocks : {"0", "-1", "2147483648", "many"}) {
    CAPTURE(blocks);
    CHECK(run(blocks, 1).status == 2);
  }
  CHECK(contains(run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 1 --kv-blocks 8").err,
                 "--kv-blocks does nothing without --requests"));
}

TEST_CASE("the program serves the same texts from a small pool, and prints the number of preemptions") {
  std::string file;
  for (int i = 0; i < 6; ++i) {
    file += fmt::format("{{\"prompt\": \"The wolf and the fox\", \"max_new_tokens\": {}}}\n", 10 + 7 * i);
  }
  const std::string usual = "--requests - --json --ignore-eos --max-batch-size 4";
  const ProgramRun large = run_program(STAIRCASE_STEP_PROGRAM, usual, file);
  const ProgramRun small = run_program(STAIRCASE_STEP_PROGRAM, usual + " --kv-blocks 4", file);
  REQUIRE(large.status == 0);
  REQUIRE(small.status == 0);
  CHECK(small.json()["sequences"] == large.json()["sequences"]);
  CHECK(large.json()["stats"]["preempted"] == 0);
  const int preempted = small.json()["stats"]["preempted"];
  CHECK(preempted > 0);
  CHECK(contains(small.err, fmt::format("; {} preemptions", preempted)));
  CHECK(small.json()["stats"]["cache_bytes"] < large.json()["stats"]["cache_bytes"]);
  const double filled = small.json()["stats"]["cache_filled"];
  CHECK(filled > 0.0);
  CHECK(filled <= 1.0);
  CHECK(contains(small.err, fmt::format("at most 4 of 4 blocks taken, and {:.1f} % of their positions filled",
                                        100.0 * filled)));
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
