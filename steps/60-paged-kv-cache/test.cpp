#include <doctest/doctest.h>

#include <map>
#include <random>

#include "arrivals.h"
#include "generate.h"
#include "paged_kv_cache.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

/// A prompt of so many tokens, from a text that the model wrote.
std::vector<int> prompt(int length, int first = 0) {
  const auto& run = reference("sliding.json");
  std::vector<int> tokens = run["prompt_ids"].get<std::vector<int>>();
  const std::vector<int> ids = run["ids"];
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  REQUIRE(std::ssize(tokens) >= first + length);
  return {tokens.begin() + first, tokens.begin() + first + length};
}

/// The logits behind `tokens`, which a cache of one row is fed in parts of so many.
template <typename Cache>
std::vector<float> logits_in_parts(Model& model, Cache&& cache, std::span<const int> tokens,
                                   std::size_t part) {
  std::vector<float> all;
  for (; !tokens.empty(); tokens = tokens.subspan(std::min(part, tokens.size()))) {
    const std::span<float> logits = model.next_logits(tokens.first(std::min(part, tokens.size())), cache);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
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
      texts.push_back(
          generate(tales(), {request.prompt}, 1, request.options, 1, &cache, [](int, const Token&) {})[0]);
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

/// Serves the requests; after each pass, which takes a second, `after_pass`.
std::vector<Generation> served(
    const Load& load, PagedKvCache& cache, int places, std::optional<int> chunk,
    const std::function<void()>& after_pass = [] {}) {
  std::vector<Generation> texts(load.requests.size());
  double now = 0.0;
  Engine engine = make_engine(tales(), cache);
  engine.forward = [&, forward = engine.forward](std::span<const std::span<const int>> sequences) {
    const std::span<float> logits = forward(sequences);
    now += 1.0;
    after_pass();
    return logits;
  };
  Scheduler scheduler(
      engine, places, {chunk}, [](int, const Token&) {},
      [&](int number, Generation text) { texts[number] = std::move(text); });
  serve(scheduler, load.requests, {[&] { return now; }, [&](double time) { now = std::max(now, time); }});
  return texts;
}

void check_same(const std::vector<Generation>& got, const std::vector<Generation>& want) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    CHECK(got[i].tokens == want[i].tokens);
    CHECK(got[i].finish_reason == want[i].finish_reason);
  }
}

/// How many positions the rows of a cache have together.
int positions(const PagedKvCache& cache, int n_rows) {
  int sum = 0;
  for (int row = 0; row < n_rows; ++row) sum += cache.length(row);
  return sum;
}

}  // namespace

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

TEST_CASE("blocks behind the length of a row serve others") {
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
  CHECK_THROWS(cache.append(1, 1));  // no block is in two places
}

TEST_CASE("a part of the positions of taken blocks is in use") {
  PagedKvCache cache(tales(), 2, 8);
  CHECK(cache.filled() == 0.0);
  cache.append(0, 20);  // 20 of 32
  cache.append(1, 4);   // 4 of 16
  CHECK(cache.filled() == 0.5);
  cache.append(0, 12);  // and 32 of 32, in the second pass
  cache.append(1, 12);  // and 16 of 16
  CHECK(cache.filled() == 0.75);
}

TEST_CASE("logits on a paged cache are those on a static one, to the bit, in every dtype") {
  const std::vector<int> tokens = prompt(70);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    Model model = tales_in(dtype);
    for (const std::size_t part : {1u, 7u, 16u, 70u}) {
      CAPTURE(part);
      CHECK((logits_in_parts(model, PagedKvCache(model, 1, 32), tokens, part) ==
             logits_in_parts(model, StaticKvCache(model, 1), tokens, part)));
    }
  }
}

TEST_CASE("rows that change places keep their keys, and none is copied") {
  PagedKvCache cache(tales(), 3, 12);
  const std::vector<int> first = prompt(20), second = prompt(33, 50), next = prompt(1, 90), none;
  const std::vector<std::span<const int>> start{first, second, none}, swapped{none, next, next};
  tales().next_logits(start, &cache);
  cache.swap_rows(1, 2);
  cache.swap_rows(0, 1);
  const std::span<float> logits = tales().next_logits(swapped, &cache);
  const std::vector<float> got(logits.begin() + 4096, logits.end());
  std::vector<float> want;
  for (const std::vector<int>& text : {first, second}) {
    StaticKvCache own(tales(), 1);
    tales().next_logits(text, own);
    const std::span<float> alone = tales().next_logits(next, own);
    want.insert(want.end(), alone.begin(), alone.end());
  }
  CHECK((got == want));
  CHECK(cache.length(1) == 21);
  CHECK(cache.length(2) == 34);
  CHECK(cache.use().copied == 0);
}

TEST_CASE("the cache takes the memory of its blocks and of the table, and no more") {
  const ModelConfig& config = tales().config();
  PagedKvCache cache(tales(), 3, 5);
  const std::size_t block = 2u * config.n_layer * kBlockSize * config.n_embd * size_of(tales().dtype());
  CHECK(cache.use().bytes == 5 * block + 3 * 32 * sizeof(std::int32_t));
  CHECK(cache.use().allocated == cache.use().bytes);
}

TEST_CASE("every text is what it is alone, for every size of the batch, chunk and order of arrival") {
  for (const unsigned seed : {1u, 2u}) {
    const Load load = mixed_load(seed);
    const std::vector<Generation> want = load.alone();
    for (const int places : {1, 2, 5, 9}) {
      for (const std::optional<int> chunk : {std::optional<int>(), {1}, {7}, {16}}) {
        CAPTURE(places);
        CAPTURE(chunk.value_or(0));
        PagedKvCache cache(tales(), places, 32 * places);
        int rows = 0;
        check_same(served(load, cache, places, chunk, [&] { rows = positions(cache, places); }), want);
        CHECK(rows > 0);
        CHECK(positions(cache, places) == 0);
        CHECK(cache.use().copied == 0);
        cache.append(0, 32 * places * kBlockSize);  // all blocks are there again
      }
    }
  }
}

TEST_CASE("a row wastes less than one block") {
  const Load load = mixed_load(3);
  PagedKvCache cache(tales(), 9, 9 * 32);
  int most = 0;
  served(load, cache, 9, {}, [&] {
    int needed = 0;
    for (int row = 0; row < 9; ++row) needed += (cache.length(row) + kBlockSize - 1) / kBlockSize;
    most = std::max(most, needed);
  });
  CHECK(cache.most_blocks() == most);
}

TEST_CASE("random lengths never take a block twice, lose one, or keep one that is behind the end") {
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

TEST_CASE("a text fits whose newest token is behind the last position, and a longer one is refused") {
  const auto run = [](int count) {
    return run_program(STAIRCASE_STEP_PROGRAM, "--requests - --json --ignore-eos",
                       fmt::format("{{\"prompt\": \"The wolf\", \"max_new_tokens\": {}}}\n"
                                   "{{\"prompt\": \"The wolf\", \"max_new_tokens\": 1}}\n",
                                   count));
  };
  const ProgramRun fits = run(511);
  REQUIRE(fits.status == 0);
  CHECK(fits.json()["sequences"][0]["token_ids"].size() == 511);
  const ProgramRun longer = run(512);
  CHECK(longer.status == 1);
  CHECK(
      longer.err.starts_with("error: --requests -, line 1: a prompt of 2 tokens and 512 new ones are more "
                             "than the 512 positions that a text may have\n"));
  CHECK(longer.json()["sequences"].size() == 1);  // the other one runs
}

TEST_CASE("the program tells how many blocks were taken and how well they were filled, and copies nothing") {
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
  CHECK(run.err.find("at most 2 of 64 blocks taken, and ") != std::string::npos);
}
