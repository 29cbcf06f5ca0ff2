#include <doctest/doctest.h>

#include <map>
#include <numeric>
#include <random>

#include "arrivals.h"
#include "common/decoding/model_engine.h"
#include "generate.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/toy_engine.h"

using namespace staircase;

namespace {

using Times = std::vector<double>;

const Tokenizer& tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(find_model("tales-6m"));
  return tokenizer;
}

RowOptions max_tokens(int count, bool ignore_eos = true) {
  RowOptions options;
  options.stopping = {.max_new_tokens = count, .ignore_eos = ignore_eos};
  return options;
}

/// Requests, numbered as they are added.
struct Load {
  std::vector<Request> requests;

  void add(double arrival, const std::vector<int>& prompt, const RowOptions& options) {
    requests.push_back({static_cast<int>(requests.size()), arrival, prompt, options});
  }
  void add(double arrival, int prompt_length, int count) {
    std::vector<int> prompt(prompt_length);
    std::iota(prompt.begin(), prompt.end(), static_cast<int>(requests.size()));
    add(arrival, prompt, max_tokens(count));
  }
};

/// Records when the first token of each prompt went through the model.
struct WatchedEngine : DelegatingEngine {
  ToyEngine& toy;
  std::map<int, double>& joined;

  WatchedEngine(ToyEngine& toy, std::map<int, double>& joined)
      : DelegatingEngine(toy), toy(toy), joined(joined) {}

  std::span<const int> prepare(const Row& row, int r) override {
    joined.emplace(row.number, toy.now);
    return toy.prepare(row, r);
  }
};

/// A pass takes a second.
struct SlowEngine : StaticEngine {
  using StaticEngine::StaticEngine;
  double now = 0.0;

  Logits forward(std::span<const std::span<const int>> sequences) override {
    now += 1.0;
    return StaticEngine::forward(sequences);
  }

  Timer timer() {
    return {[this] { return now; }, [this](double time) { now = std::max(now, time); }};
  }
};

/// What happened to the requests on a clock that advances by a second per pass.
struct Served {
  std::vector<Generation> texts;
  std::vector<Times> times;           ///< times of each request's tokens
  std::map<int, double> joined = {};  ///< when the first of the prompt went through the model

  Served(const Load& load, int slots, std::optional<int> chunk, ToyEngine& toy)
      : texts(load.requests.size()), times(texts.size()) {
    WatchedEngine engine(toy, joined);
    Scheduler scheduler(
        engine, tales_tokenizer(), slots, {chunk},
        [&](int number, const Token&) { times[number].push_back(toy.now); },
        [&](int number, Generation text) { texts[number] = std::move(text); });
    serve(scheduler, load.requests, toy.timer());
    CHECK(scheduler.idle());
  }
};

/// A prompt of this many tokens, from a text that the model wrote.
std::vector<int> prompt(int length, int first = 0) {
  const auto& run = reference("sliding.json");
  std::vector<int> tokens = run["prompt_ids"].get<std::vector<int>>();
  const std::vector<int> ids = run["ids"];
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  REQUIRE(std::ssize(tokens) >= first + length);
  return {tokens.begin() + first, tokens.begin() + first + length};
}

struct Text {
  Generation generation = {};
  std::string shown = {};

  void take(const Token& token) { shown += token.text.value_or(std::string(tokenizer().bytes(token.id))); }
};

/// Compares the requests' continuations in chunks with those of the single-text loop, whose prompt goes
/// through the model as a whole.
void check_same(const Load& load, const std::vector<Text>& want, int slots, std::optional<int> chunk) {
  StaticKvCache cache(tales(), slots);
  std::vector<Text> got(load.requests.size());
  SlowEngine engine(tales(), cache);
  Scheduler scheduler(
      engine, tales_tokenizer(), slots, {chunk},
      [&](int number, const Token& token) { got[number].take(token); },
      [&](int number, Generation text) { got[number].generation = std::move(text); });
  serve(scheduler, load.requests, engine.timer());
  for (std::size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    CAPTURE(slots);
    CAPTURE(chunk.value_or(-1));
    CHECK(got[i].generation.tokens == want[i].generation.tokens);
    CHECK(got[i].generation.finish_reason == want[i].generation.finish_reason);
    CHECK(got[i].shown == want[i].shown);
  }
}

std::vector<Text> alone(const Load& load) {
  std::vector<Text> texts;
  for (const Request& request : load.requests) {
    StaticKvCache cache(tales(), 1);
    Text& text = texts.emplace_back();
    text.generation = generate(tales(), tales_tokenizer(), {request.prompt}, 1, request.options, 1, cache,
                               [&](int, const Token& token) { text.take(token); })[0];
  }
  return texts;
}

}  // namespace

TEST_CASE("without a chunk, the prompts of all texts that have a place go through the model as a whole") {
  Load load;
  load.add(0.0, 2, 2);
  load.add(0.0, 400, 2);
  load.add(0.0, 7, 2);
  ToyEngine toy(3);
  const Served got(load, 3, {}, toy);
  CHECK(toy.tokens == std::vector<int>{409, 3});
}

TEST_CASE("every text is the same as alone, in whatever chunks its prompt arrives") {
  Load load;
  std::mt19937 generator(3);
  for (int i = 0; i < 10; ++i) {
    RowOptions options = max_tokens(1 + static_cast<int>(generator() % 25), i % 4 == 0);
    if (i % 2 == 1) {
      options.sampling = {.do_sample = true, .frequency_penalty = 0.4f, .temperature = 1.1f};
      if (i % 3 == 0) options.sampling.top_k = 30;
      if (i % 3 == 1) options.sampling.top_p = 0.9f;
    }
    options.sampling.seed = generator() % 100;
    if (i % 5 == 0) options.sampling.repetition_penalty = 1.3f;
    if (i % 3 == 2) options.stop = {{"he", ".\n"}};
    if (i % 6 == 5) options.length.min_new_tokens = options.stopping.max_new_tokens;
    const int length =
        i % 4 == 3 ? 60 + static_cast<int>(generator() % 90) : 1 + static_cast<int>(generator() % 20);
    load.add(static_cast<double>(generator() % 12), prompt(length, static_cast<int>(generator() % 300)),
             options);
  }
  const std::vector<Text> want = alone(load);
  for (const int chunk : {1, 2, 7, 16, 64, 1000}) check_same(load, want, 5, chunk);
  check_same(load, want, 5, {});
  check_same(load, want, 1, 10);
  for (int round = 0; round < 3; ++round) {
    for (Request& request : load.requests) request.arrival = round == 0 ? 0.0 : generator() % 40 / 2.0;
    check_same(load, want, 3, 5 + round);
  }
}

TEST_CASE("texts that outgrow the context, and prompts beyond it, are the same as alone, under both rules") {
  for (const Overflow rule : {Overflow::kSlide, Overflow::kRecompute}) {
    Load load;
    RowOptions options = max_tokens(20);
    options.overflow = {.on_overflow = rule, .refill = 100};
    load.add(0.0, prompt(505), options);
    load.add(1.0, prompt(8, 40), options);
    load.add(2.0, prompt(508), options);
    load.add(0.0, prompt(520), options);
    load.add(0.0, prompt(512), options);
    const std::vector<Text> want = alone(load);
    check_same(load, want, 3, {});
    check_same(load, want, 3, 48);
    check_same(load, want, 5, 511);
  }
}

TEST_CASE("a long prompt in chunks lets the others go on, and the next prompt waits for its turn") {
  Load load;
  load.add(0.0, 2, 5);
  load.add(0.0, 10, 2);
  load.add(0.0, 1, 1);
  ToyEngine toy(3);
  Served got(load, 3, 4, toy);
  // 2 + 2 tokens of prompts, 1 + 4, 1 + 4, then one of each, and the first row alone.
  CHECK(toy.tokens == std::vector<int>{4, 5, 5, 3, 1});
  CHECK(got.times == std::vector<Times>{{1, 2, 3, 4, 5}, {3, 4}, {4}});
  CHECK(got.joined[2] == 3.0);
}

TEST_CASE("no pass has more rows or prompt tokens than allowed, and no place is empty without a reason") {
  std::mt19937 generator(5);
  for (int round = 0; round < 300; ++round) {
    Load load;
    int work = 0;
    for (int i = 0; i < 14; ++i) {
      const int length = 1 + static_cast<int>(generator() % 30),
                count = 1 + static_cast<int>(generator() % 9);
      load.add(generator() % 20, length, count);
      work += length + count - 1;
    }
    const int slots = 1 + static_cast<int>(generator() % 5), chunk = 1 + static_cast<int>(generator() % 12);
    ToyEngine toy(slots);
    Served got(load, slots, chunk, toy);
    CHECK(std::ranges::max(toy.rows) <= slots);
    CHECK(std::accumulate(toy.tokens.begin(), toy.tokens.end(), 0) == work);
    for (std::size_t i = 0; i < toy.tokens.size(); ++i) CHECK(toy.tokens[i] <= chunk + toy.rows[i] - 1);
    for (const Request& request : load.requests) {
      CHECK(got.texts[request.number].tokens == ToyEngine::alone(request.prompt, request.options).tokens);
      const Times& times = got.times[request.number];
      // Growing texts never wait for a prompt.
      CHECK(times.back() - times.front() == static_cast<double>(times.size()) - 1.0);
      // While a request waited, all slots were taken, or the pass had its full share of prompt tokens.
      for (double pass = std::ceil(request.arrival); pass < got.joined[request.number]; pass += 1.0) {
        int rows = 0, halves = 0;
        for (int other = 0; other < 14; ++other) {
          if (got.joined[other] > pass) continue;
          rows += got.times[other].back() > pass;
          halves += got.times[other].front() > pass;
        }
        CHECK((rows == slots || halves > 0));
      }
    }
  }
}

TEST_CASE("at most one prompt is partly in the cache") {
  Load load;
  for (int i = 0; i < 5; ++i) load.add(0.0, 10, 3);
  ToyEngine toy(5);
  Served got(load, 5, 4, toy);
  std::vector<Times> prefills;
  for (int i = 0; i < 5; ++i) prefills.push_back({got.joined[i], got.times[i].front()});
  // 10 tokens in chunks of 4: the rest of a pass goes to the next prompt.
  CHECK(prefills == std::vector<Times>{{0, 3}, {2, 5}, {5, 8}, {7, 10}, {10, 13}});
}

TEST_CASE("a text may be cancelled while its prompt is partly in the cache") {
  ToyEngine toy(3);
  std::map<int, Generation> texts;
  Scheduler scheduler(
      toy, tales_tokenizer(), 3, {4}, [](int, const Token&) {},
      [&](int number, Generation text) { texts[number] = std::move(text); });
  const std::vector<int> shorter{1, 2}, longer(10, 5);
  scheduler.submit(0, shorter, max_tokens(9));
  scheduler.submit(1, longer, max_tokens(3));
  scheduler.submit(2, shorter, max_tokens(9));
  scheduler.pass();
  scheduler.cancel(1);
  while (!scheduler.idle()) scheduler.pass();
  CHECK(texts.size() == 2);
  for (const int number : {0, 2})
    CHECK(texts[number].tokens == ToyEngine::alone(shorter, max_tokens(9)).tokens);
  CHECK(toy.tokens[1] == 3);  // a token of the first text, and the third, which gets the slot at once
}

TEST_CASE("rows keep their tokens in place when they move") {
  // A pass gets spans of tokens before all rows have joined, so rows that move must keep their tokens.
  CHECK(std::is_nothrow_move_constructible_v<Row>);
}

TEST_CASE("the program gives the same texts in chunks and as a whole") {
  const std::string file =
      "{\"prompt\": \"The wolf and the fox went to the king\", \"max_new_tokens\": 20}\n"
      "{\"prompt\": \"\", \"do_sample\": true, \"seed\": 5, \"temperature\": 0.8, \"top_k\": 20}\n"
      "{\"prompt\": \"Once upon a time there was\", \"stop\": [\"king\", \"was\"], \"arrival\": 0.05}\n"
      "{\"prompt\": \"A fox\", \"repetition_penalty\": 1.2, \"logprobs\": 2, \"max_new_tokens\": 0}\n";
  const std::string usual = "--requests - --max-new-tokens 30 --json --threads 1 --max-batch-size 2";
  const ProgramRun whole = run_program(STAIRCASE_STEP_PROGRAM, usual, file);
  const ProgramRun chunks = run_program(STAIRCASE_STEP_PROGRAM, usual + " --prefill-chunk 3", file);
  REQUIRE(whole.status == 0);
  REQUIRE(chunks.status == 0);
  CHECK(chunks.json()["sequences"] == whole.json()["sequences"]);
}

TEST_CASE("a chunk of no tokens is refused, and one without requests does nothing") {
  CHECK(contains(run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 1 --prefill-chunk 8").err,
                 "--prefill-chunk does nothing without --requests"));
  for (const char* chunk : {"0", "-1", "2147483648", "many"}) {
    CAPTURE(chunk);
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM, fmt::format("--requests - --prefill-chunk {}", chunk),
                    "{\"prompt\": \"The\"}\n");
    CHECK(run.status == 2);
    CHECK(contains(run.err, "--prefill-chunk"));
    CHECK(run.out == "");
  }
  // The length of a chunk applies to all requests.
  const ProgramRun own =
      run_program(STAIRCASE_STEP_PROGRAM, "--requests -", "{\"prompt\": \"The\", \"prefill_chunk\": 3}\n");
  CHECK(own.status == 1);
  CHECK(contains(own.err, "line 1: unknown key \"prefill_chunk\""));
}

TEST_CASE("requests have the cache, and one text each") {
  for (const char* wrong : {"--no-use-cache", "--do-sample --num-return-sequences 2"}) {
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM, fmt::format("--requests - {}", wrong), "{\"prompt\": \"A\"}\n");
    CHECK(run.status == 2);
    CHECK(run.err == "error: --requests cannot be combined with --num-return-sequences or --no-use-cache\n");
  }
}
