#include <doctest/doctest.h>

#include <map>
#include <random>

#include "arrivals.h"
#include "generate.h"
#include "paged_engine.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/same_logits.h"
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

/// Whether rows take blocks: without them, the model would read memory outside the cache.
bool rows_take_blocks() {
  PagedKvCache cache(tales(), 1, 4);
  cache.append(0, 20);
  return cache.most_blocks() == 2;
}

}  // namespace

TEST_CASE("a pool allocates each block once, block 0 first, and then the one that was freed last") {
  BlockPool pool(4);
  CHECK(pool.free() == 4);
  for (const int block : {0, 1, 2}) CHECK(pool.take() == block);
  CHECK(pool.taken() == 3);
  pool.release(0);
  pool.release(2);
  CHECK(pool.free() == 3);
  for (const int block : {2, 0, 3}) CHECK(pool.take() == block);
  CHECK(pool.free() == 0);
  CHECK_THROWS(pool.take());
}

TEST_CASE("rows take their blocks from all over the pool, and their logits are those of a static cache") {
  PagedKvCache cache(tales(), 2, 5);
  REQUIRE(rows_take_blocks());
  const std::vector<int> first = prompt(40), second = prompt(20, 100);
  for (std::size_t i = 0; i < 20; i += 10) {  // the blocks of both alternate
    const std::vector<std::span<const int>> fed{std::span(first).subspan(2 * i, 20),
                                                std::span(second).subspan(i, 10)};
    const std::span<const float> logits = tales().next_logits(fed, cache);
    const std::vector<float> got(logits.begin(), logits.end());
    StaticKvCache one(tales(), 1), other(tales(), 1);
    const std::span<const float> want = tales().next_logits(std::span(first).first(2 * i + 20), one);
    CHECK(other_logits(std::span(got).first(want.size()), want) == "");
    const std::span<const float> next = tales().next_logits(std::span(second).first(i + 10), other);
    CHECK(other_logits(std::span(got).last(next.size()), next) == "");
  }
  CHECK(cache.most_blocks() == 5);
}

TEST_CASE("a row takes a block when it needs one, and not before") {
  PagedKvCache cache(tales(), 2, 6);
  const std::pair<int, int> steps[] = {{15, 1}, {1, 1}, {1, 2}, {15, 2}, {33, 5}};  // tokens, blocks then
  for (const auto& [count, blocks] : steps) {
    cache.append(1, count);
    CHECK(cache.most_blocks() == blocks);
  }
  CHECK(cache.length(1) == 65);
  CHECK(cache.length(0) == 0);
}

TEST_CASE("blocks after the length of a row serve others") {
  PagedKvCache cache(tales(), 2, 4);
  cache.append(0, 64);
  cache.truncate(0, 33);  // three blocks hold 33 positions
  cache.append(1, 16);
  cache.truncate(0, 32);
  cache.append(1, 16);
  cache.truncate(0, 0);
  cache.append(1, 32);
  CHECK(cache.most_blocks() == 4);
  CHECK(cache.length(1) == 64);
  CHECK_THROWS(cache.append(1, 1));  // no block belongs to two rows
}

TEST_CASE("the share of the positions in allocated blocks that is in use") {
  PagedKvCache cache(tales(), 2, 8);
  CHECK(cache.filled() == 0.0);
  cache.append(0, 20);  // 20 of 32
  cache.append(1, 4);   // 4 of 16
  CHECK(cache.filled() == 0.5);
  cache.append(0, 12);  // and 32 of 32, in the second pass
  cache.append(1, 12);  // and 16 of 16
  CHECK(cache.filled() == 0.75);
}

TEST_CASE("the cache takes the memory of its blocks and of the table, and no more") {
  const ModelConfig& config = tales().config();
  PagedKvCache cache(tales(), 3, 5);
  const std::size_t block = 2u * config.n_layer * kBlockSize * config.n_embd * size_of(tales().dtype());
  CHECK(cache.use().bytes == 5 * block + 3 * 32 * sizeof(std::int32_t));
  CHECK(cache.use().allocated == cache.use().bytes);
}

TEST_CASE("every text equals the one decoded alone, for every batch size and prefill chunk") {
  REQUIRE(rows_take_blocks());
  for (const unsigned seed : {1u, 2u}) {
    const Load load = mixed_load(seed);
    const std::vector<Generation> want = load.alone();
    for (const int slots : {1, 2, 5, 9}) {
      for (const std::optional<int> chunk : {std::optional<int>(), {1}, {7}, {16}}) {
        CAPTURE(slots);
        CAPTURE(chunk.value_or(0));
        PagedKvCache cache(tales(), slots, 32 * slots);
        SlowEngine engine(tales(), cache);
        int rows = 0;
        engine.after_pass = [&] { rows = positions(cache, slots); };
        check_same(served(load, engine, slots, chunk), want);
        CHECK(rows > 0);
        CHECK(positions(cache, slots) == 0);
        CHECK(cache.use().copied == 0);
        cache.append(0, 32 * slots * kBlockSize);  // all blocks are free again
      }
    }
  }
}

TEST_CASE("a row wastes less than one block") {
  REQUIRE(rows_take_blocks());
  const Load load = mixed_load(3);
  PagedKvCache cache(tales(), 9, 9 * 32);
  SlowEngine engine(tales(), cache);
  int most = 0;
  engine.after_pass = [&] {
    int needed = 0;
    for (int row = 0; row < 9; ++row) needed += (cache.length(row) + kBlockSize - 1) / kBlockSize;
    most = std::max(most, needed);
  };
  served(load, engine, 9, {});
  CHECK(cache.most_blocks() == most);
}

TEST_CASE("random lengths never take a block twice, lose one, or keep one past the end") {
  constexpr int kRows = 5, kBlocks = 20;
  std::mt19937 generator(7);
  for (int round = 0; round < 20; ++round) {
    PagedKvCache cache(tales(), kRows, kBlocks);
    std::vector<int> lengths(kRows);
    for (int step = 0; step < 300; ++step) {
      const int row = static_cast<int>(generator() % kRows);
      int free = kBlocks;
      for (const int length : lengths) free -= blocks_for(length);
      if (generator() % 3 == 0) {
        lengths[row] = static_cast<int>(generator() % (lengths[row] + 1));
        cache.truncate(row, lengths[row]);
      } else if (generator() % 4 == 0) {
        const int other = static_cast<int>(generator() % kRows);
        std::swap(lengths[row], lengths[other]);
        cache.swap_rows(row, other);
      } else {
        const int room = (blocks_for(lengths[row]) + free) * kBlockSize - lengths[row];
        const int count = std::min(room, static_cast<int>(generator() % 40));
        lengths[row] += count;
        cache.append(row, count);
      }
      for (int r = 0; r < kRows; ++r) CHECK(cache.length(r) == lengths[r]);
    }
  }
}

TEST_CASE("the program prints how many blocks were taken and how well they were filled, and copies nothing") {
  const std::string file =
      "{\"prompt\": \"The wolf\", \"max_new_tokens\": 4}\n"
      "{\"prompt\": \"A fox\", \"max_new_tokens\": 12}\n"
      "{\"prompt\": \"The king\", \"max_new_tokens\": 8}\n";
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM, "--requests - --json --ignore-eos --max-batch-size 2", file);
  REQUIRE(run.status == 0);
  auto stats = run.json()["stats"];
  CHECK(stats["cache_copied_bytes"] == 0);
  CHECK(stats["cache_filled"] > 0.1);
  CHECK(stats["cache_filled"] < 0.9);
  CHECK(contains(run.err, fmt::format("at most 2 of 64 blocks taken, and {:.1f} % of their positions filled",
                                      100.0 * stats["cache_filled"].get<double>())));
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
