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

/// The logits after `tokens`, fed to a cache of one row in parts of this size.
template <typename Cache>
std::vector<float> logits_in_parts(Model& model, Cache&& cache, std::span<const int> tokens,
                                   std::size_t part) {
  std::vector<float> all;
  for (; !tokens.empty(); tokens = tokens.subspan(std::min(part, tokens.size()))) {
    const std::span<const float> logits =
        model.next_logits(tokens.first(std::min(part, tokens.size())), cache);
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

}  // namespace

TEST_CASE("logits with a paged cache equal those with a static one, bit for bit, in every dtype") {
  const std::vector<int> tokens = prompt(70);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    Model model = tales_in(dtype);
    for (const std::size_t part : {1u, 7u, 16u, 70u}) {
      CAPTURE(part);
      CHECK(logit_difference(logits_in_parts(model, PagedKvCache(model, 1, 32), tokens, part),
                             logits_in_parts(model, StaticKvCache(model, 1), tokens, part)) == "");
    }
  }
}

TEST_CASE("swapped rows keep their keys, and none is copied") {
  PagedKvCache cache(tales(), 3, 12);
  const std::vector<int> first = prompt(20), second = prompt(33, 50), next = prompt(1, 90), none;
  const std::vector<std::span<const int>> start{first, second, none}, swapped{none, next, next};
  tales().next_logits(start, cache);
  cache.swap_rows(1, 2);
  cache.swap_rows(0, 1);
  const std::span<const float> logits = tales().next_logits(swapped, cache);
  const std::vector<float> got(logits.begin() + 4096, logits.end());
  std::vector<float> want;
  for (const std::vector<int>& text : {first, second}) {
    StaticKvCache own(tales(), 1);
    tales().next_logits(text, own);
    const std::span<const float> alone = tales().next_logits(next, own);
    want.insert(want.end(), alone.begin(), alone.end());
  }
  CHECK(other_logits(got, want) == "");
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

TEST_CASE("every text equals the one decoded alone, for every batch size and prefill chunk") {
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
      }
    }
  }
}

TEST_CASE("rows of random lengths keep their own keys and values through random swaps") {
  constexpr int kRows = 4;
  std::mt19937 generator(7);
  PagedKvCache cache(tales(), kRows, kRows * blocks_for(tales().config().n_positions));
  std::vector<std::vector<int>> texts(kRows);
  for (int step = 0; step < 60; ++step) {
    const int row = static_cast<int>(generator() % kRows), other = static_cast<int>(generator() % kRows);
    if (generator() % 3 == 0) {
      texts[row].resize(generator() % (texts[row].size() + 1));
      cache.truncate(row, static_cast<int>(texts[row].size()));
    }
    std::swap(texts[row], texts[other]);
    cache.swap_rows(row, other);
    std::vector<std::vector<int>> next;
    for (int r = 0; r < kRows; ++r) next.push_back(prompt(1 + static_cast<int>(generator() % 9), 5 * step));
    const std::vector<std::span<const int>> fed(next.begin(), next.end());
    const std::span<const float> logits = tales().next_logits(fed, cache);
    const std::vector<float> got(logits.begin(), logits.end());
    for (int r = 0; r < kRows; ++r) {
      texts[r].insert(texts[r].end(), next[r].begin(), next[r].end());
      REQUIRE(cache.length(r) == std::ssize(texts[r]));
      StaticKvCache own(tales(), 1);
      const std::span<const float> want = tales().next_logits(texts[r], own);
      CHECK(other_logits(std::span(got).subspan(r * want.size(), want.size()), want) == "");
    }
  }
}

TEST_CASE("a text fits if its newest token is just past the last position, and a longer one is refused") {
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
  CHECK(longer.err.substr(0, longer.err.find('\n')) ==
        "error: --requests -, line 1: a prompt of 2 tokens and 512 new ones do not fit into 512 positions");
  CHECK(longer.json()["sequences"].size() == 1);  // the other one runs
}

TEST_CASE("the program copies no key when a row moves, and serves the texts of each prompt alone") {
  const std::string file =
      "{\"prompt\": \"The wolf\", \"max_new_tokens\": 4}\n"
      "{\"prompt\": \"A fox\", \"max_new_tokens\": 12}\n"
      "{\"prompt\": \"The king\", \"max_new_tokens\": 8}\n";
  const std::string usual = " --json --ignore-eos --max-batch-size 2";
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--requests -" + usual, file);
  REQUIRE(run.status == 0);
  CHECK(run.json()["stats"]["cache_copied_bytes"] == 0);
  const ProgramRun alone =
      run_program(STAIRCASE_STEP_PROGRAM, "--prompt 'A fox' --max-new-tokens 12" + usual);
  CHECK(run.json()["sequences"][1] == alone.json()["sequences"][0]);
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
