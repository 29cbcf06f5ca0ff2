#include <doctest/doctest.h>

#include <map>
#include <random>

#include "arrivals.h"
#include "generate.h"
#include "paged_engine.h"
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

std::vector<Generation> served(const Load& load, SlowEngine& engine, int slots, std::optional<int> chunk) {
  std::vector<Generation> texts(load.requests.size());
  Scheduler scheduler(
      engine, tales_tokenizer(), slots, {chunk}, [](int, const Token&) {},
      [&](int number, Generation text) { texts[number] = std::move(text); });
  serve(scheduler, load.requests,
        {[&] { return engine.now; }, [&](double time) { engine.now = std::max(engine.now, time); }});
  return texts;
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

/// A text of this many tokens, which will get one more.
Row text_of(int tokens) {
  RowOptions options;
  options.stopping.max_new_tokens = 1;
  return {0, prompt(tokens), options, {}, StopFilter(options.stop, tales_tokenizer())};
}

/// Serves texts with these numbers of prompt tokens and new tokens, all submitted at the start. Returns the
/// passes in which each got a token. `before_pass` may cancel some.
using Asked = std::vector<std::pair<int, int>>;
std::vector<std::vector<int>> passes_of(
    const Asked& asked, int blocks,
    const std::function<void(Scheduler&, int pass)>& before_pass = [](Scheduler&, int) {}) {
  const int slots = static_cast<int>(asked.size());
  PagedKvCache cache(tales(), slots, blocks);
  PagedEngine engine(tales(), cache);
  std::vector<std::vector<int>> passes(asked.size());
  int pass = 1;
  Scheduler scheduler(
      engine, tales_tokenizer(), slots, {},
      [&](int number, const Token&) { passes[static_cast<std::size_t>(number)].push_back(pass); },
      [](int, const Generation&) {});
  for (int number = 0; number < slots; ++number) {
    const auto [tokens, new_tokens] = asked[static_cast<std::size_t>(number)];
    RowOptions options;
    options.stopping = {.max_new_tokens = new_tokens, .ignore_eos = true};
    scheduler.submit(number, prompt(tokens), options);
  }
  for (; !scheduler.idle() && pass < 100; ++pass) {
    before_pass(scheduler, pass);
    scheduler.pass();
  }
  return passes;
}

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

TEST_CASE("a row gets all requested blocks, or none of them") {
  PagedKvCache cache(tales(), 3, 6);
  CHECK(cache.reserve(0, 33));  // 3 blocks
  CHECK(cache.reserve(0, 48));  // these three are enough
  CHECK(!cache.reserve(1, 49));
  CHECK(cache.reserve(1, 48));
  CHECK(!cache.reserve(0, 49));
  cache.truncate(1, 0);
  CHECK(cache.reserve(0, 96));
}

TEST_CASE("a text has room if there are blocks for all its tokens but the last") {
  PagedKvCache cache(tales(), 2, 1);
  PagedEngine engine(tales(), cache);
  CHECK(!engine.make_room(text_of(17), 0));
  CHECK(cache.reserve(1, 16));  // nothing was taken
  cache.truncate(1, 0);
  CHECK(engine.make_room(text_of(16), 0));
  CHECK(engine.make_room(text_of(16), 0));  // the row already has these blocks
  CHECK(!engine.make_room(text_of(1), 1));
}

TEST_CASE("no text overtakes another that waits for blocks") {
  // 33 + 4 - 1 positions, or 3 of 4 blocks; then 2 blocks, and 1.
  CHECK(passes_of({{33, 4}, {30, 2}, {1, 1}}, 4) == Passes{{1, 2, 3, 4}, {5, 6}, {5}});
}

TEST_CASE("a text has blocks for its end before it begins, so it never waits in the middle") {
  // Each text needs one block at the beginning and two in the end.
  CHECK(passes_of({{15, 4}, {15, 3}, {15, 2}}, 4) == Passes{{1, 2, 3, 4}, {1, 2, 3}, {4, 5}});
}

TEST_CASE("a text that leaves while it waits lets the others through") {
  const auto leaves = [](Scheduler& scheduler, int pass) {
    if (pass == 3) scheduler.cancel(1);
  };
  CHECK(passes_of({{33, 4}, {30, 2}, {1, 1}}, 4, leaves) == Passes{{1, 2, 3, 4}, {}, {3}});
}

TEST_CASE("every text is the same as alone, for every size of the pool, the batch and the chunks") {
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
          check_same(served(load, engine, slots, chunk), want);
          CHECK(positions(cache, slots) == 0);
          CHECK(cache.most_blocks() <= blocks);
          CHECK(cache.reserve(0, blocks * kBlockSize));  // all blocks are there again
        }
      }
    }
  }
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

TEST_CASE("the program serves the same texts from a small pool, in its memory") {
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
