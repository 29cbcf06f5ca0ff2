#include <doctest/doctest.h>

#include <map>
#include <numeric>
#include <random>

#include "arrivals.h"
#include "common/decoding/model_engine.h"
#include "generate.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/toy_engine.h"

using namespace staircase;

namespace {

using Times = std::vector<double>;

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

/// What happened to the requests on a clock that advances by a second per pass.
struct Served {
  std::vector<Generation> texts;
  std::vector<Times> times;  ///< times of each request's tokens

  Served(const Load& load, int slots, ToyEngine& toy) : texts(load.requests.size()), times(texts.size()) {
    Scheduler scheduler(
        toy, tales_tokenizer(), slots, [&](int number, const Token&) { times[number].push_back(toy.now); },
        [&](int number, Generation text) { texts[number] = std::move(text); });
    serve(scheduler, load.requests, toy.timer());
    CHECK(scheduler.idle());
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

}  // namespace

TEST_CASE("a request joins once it has arrived and a place is free") {
  Load load;
  load.add(0.0, 3, 3);
  load.add(0.0, 3, 1);
  load.add(10.0, 3, 1);
  load.add(0.5, 3, 2);  // arrives before the third, although its line comes later
  ToyEngine toy(2);
  const Served got(load, 2, toy);
  CHECK(got.times[0] == Times{1, 2, 3});
  CHECK(got.times[1] == Times{1});
  CHECK(got.times[3] == Times{2, 3});
  CHECK(got.times[2] == Times{11});
  CHECK(toy.rows == std::vector<int>{2, 2, 2, 1});
  CHECK(toy.tokens == std::vector<int>{6, 4, 2, 3});
}

TEST_CASE("the first to arrive is the first to be served, and among equals the first line") {
  Load load;
  for (const double arrival : {3.0, 1.0, 2.0, 1.0, 0.0}) load.add(arrival, 2, 4);
  ToyEngine toy(1);
  const Served got(load, 1, toy);
  CHECK(got.times[4].back() == 4.0);
  CHECK(got.times[1].back() == 8.0);
  CHECK(got.times[3].back() == 12.0);
  CHECK(got.times[2].back() == 16.0);
  CHECK(got.times[0].back() == 20.0);
}

TEST_CASE("while no request is there, time passes without a pass of the model") {
  Load load;
  load.add(5.25, 2, 1);
  load.add(86400.0, 2, 1);
  load.add(7.0, 2, 0);  // requests no tokens
  ToyEngine toy(4);
  const Served got(load, 4, toy);
  CHECK(got.times == std::vector<Times>{{6.25}, {86401.0}, {}});
  CHECK(got.texts[2].tokens == load.requests[2].prompt);
  CHECK(toy.rows == std::vector<int>{1, 1});
  const Load nobody;
  const Served nothing(nobody, 1, toy);
  CHECK(toy.rows.size() == 2);
}

TEST_CASE("texts are the same as alone, rows are few, and no place is empty while a text waits") {
  std::mt19937 generator(5);
  int ended_early = 0;
  for (int round = 0; round < 200; ++round) {
    Load load;
    int work = 0;
    for (int i = 0; i < 14; ++i) {
      std::vector<int> prompt(1 + generator() % 30);
      for (int& token : prompt) token = static_cast<int>(generator() % ToyEngine::kVocabSize);
      load.add(generator() % 40 / 2.0, prompt, max_tokens(static_cast<int>(generator() % 20), i % 2 == 0));
    }
    const int slots = 1 + static_cast<int>(generator() % 5);
    ToyEngine toy(slots);
    const Served got(load, slots, toy);
    for (std::size_t i = 0; i < load.requests.size(); ++i) {
      const Request& request = load.requests[i];
      const Generation want = ToyEngine::alone(request.prompt, request.options);
      CHECK(got.texts[i].tokens == want.tokens);
      CHECK(got.texts[i].finish_reason == want.finish_reason);
      ended_early += want.finish_reason == FinishReason::kEos;
      const Times& times = got.times[i];
      REQUIRE(times.size() == want.tokens.size() - request.prompt.size());
      if (times.empty()) continue;
      work += static_cast<int>(want.tokens.size()) - 1;
      // Once a text grows, it gets a token per second; until then, all slots were taken.
      CHECK(times.back() - times.front() == static_cast<double>(times.size()) - 1.0);
      CHECK(times.front() > request.arrival);
      for (double second = times.front() - 1.0; second - 1.0 >= request.arrival; second -= 1.0) {
        const auto grows = [&](const Times& other) {
          return !other.empty() && other.front() <= second && other.back() >= second;
        };
        CHECK(std::ranges::count_if(got.times, grows) == slots);
      }
    }
    CHECK(std::ranges::max(toy.rows) <= slots);
    CHECK(std::accumulate(toy.tokens.begin(), toy.tokens.end(), 0) == work);
  }
  CHECK(ended_early > 50);
}

TEST_CASE("whichever text leaves, from whichever place, the cache moves along with the others") {
  std::mt19937 generator(8);
  for (int round = 0; round < 200; ++round) {
    const int slots = 1 + static_cast<int>(generator() % 5);
    ToyEngine toy(slots);
    std::map<int, Generation> texts;
    std::map<int, Request> asked;
    std::vector<bool> cancelled(60);
    Scheduler scheduler(
        toy, tales_tokenizer(), slots, [&](int number, const Token&) { CHECK(!cancelled[number]); },
        [&](int number, Generation text) { texts[number] = std::move(text); });
    for (int number = 0; number < 60; ++number) {
      asked[number] = {number, 0.0, {number % 29, 3}, max_tokens(1 + static_cast<int>(generator() % 9))};
      scheduler.submit(number, asked[number].prompt, asked[number].options);
      if (generator() % 3 == 0) {
        const int other = static_cast<int>(generator() % asked.size());
        if (!texts.contains(other)) cancelled[other] = true;
        scheduler.cancel(other);
      }
      if (generator() % 2 == 0) scheduler.pass();
    }
    while (!scheduler.idle()) scheduler.pass();
    for (const auto& [number, request] : asked) {
      REQUIRE(texts.contains(number) == !cancelled[number]);
      if (cancelled[number]) continue;
      CHECK(texts[number].tokens == ToyEngine::alone(request.prompt, request.options).tokens);
    }
  }
}

TEST_CASE("a callback may submit the next request") {
  ToyEngine toy(1);
  std::vector<int> finished;
  Scheduler* itself = nullptr;
  Scheduler scheduler(
      toy, tales_tokenizer(), 1, [](int, const Token&) {},
      [&](int number, const Generation&) {
        finished.push_back(number);
        if (number < 4) itself->submit(number + 1, {1, 2}, max_tokens(2));
      });
  itself = &scheduler;
  scheduler.submit(0, {1, 2}, max_tokens(2));
  while (!scheduler.idle()) scheduler.pass();
  CHECK(finished == std::vector<int>{0, 1, 2, 3, 4});
}

TEST_CASE("an engine with a model gives the texts of the previous step, and leaves its cache empty") {
  const auto& run = reference("sliding.json");
  const std::vector<int> all = run["ids"];
  Load load;
  std::mt19937 generator(3);
  for (int i = 0; i < 9; ++i) {
    RowOptions options = max_tokens(1 + static_cast<int>(generator() % 25), i % 3 == 0);
    options.sampling = {.do_sample = i % 2 == 1, .seed = static_cast<unsigned>(i), .temperature = 1.1f};
    const int first = static_cast<int>(generator() % 300), length = 1 + static_cast<int>(generator() % 40);
    load.add(generator() % 24 / 2.0, {all.begin() + first, all.begin() + first + length}, options);
  }
  RowOptions options = max_tokens(12);  // beyond the context
  options.overflow.on_overflow = Overflow::kRecompute;
  load.add(2.0, {all.begin(), all.begin() + 506}, options);
  for (const int slots : {1, 3, 10}) {
    StaticKvCache cache(tales(), slots);
    SlowEngine slow(tales(), cache);
    std::vector<Generation> texts(load.requests.size());
    Scheduler scheduler(
        slow, tales_tokenizer(), slots, [](int, const Token&) {},
        [&](int number, Generation text) { texts[number] = std::move(text); });
    serve(scheduler, load.requests, slow.timer());
    for (const Request& request : load.requests) {
      CAPTURE(request.number);
      StaticKvCache own(tales(), 1);
      const Generation want = generate(tales(), tales_tokenizer(), {request.prompt}, 1, request.options, 1,
                                       own, [](int, const Token&) {})[0];
      CHECK(texts[request.number].tokens == want.tokens);
      CHECK(texts[request.number].finish_reason == want.finish_reason);
    }
    for (int r = 0; r < slots; ++r) CHECK(cache.length(r) == 0);
  }
}

TEST_CASE("real time passes by itself, and sleeping takes the requested time") {
  const Timer timer = real_time();
  const double start = timer.now();
  CHECK(start >= 0.0);
  timer.sleep_until(start + 0.02);
  CHECK(timer.now() >= start + 0.02);
  timer.sleep_until(0.0);
  CHECK(timer.now() < 60.0);
}

TEST_CASE("the program waits for its requests, and shows their texts in the order of the lines") {
  const auto start = Clock::now();
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM, "--requests - --json --max-new-tokens 5",
                  "{\"prompt\": \"The fox\", \"arrival\": 0.4}\n{\"prompt\": \"A wolf\"}\n");
  CHECK(Clock::now() - start >= std::chrono::milliseconds(400));
  REQUIRE(run.status == 0);
  const auto got = run.json()["sequences"];
  const ProgramRun want =
      run_program(STAIRCASE_STEP_PROGRAM, "--prompt 'The fox' --prompt 'A wolf' --json --max-new-tokens 5");
  CHECK(got == want.json()["sequences"]);
}

TEST_CASE("an impossible arrival is named with its line, and the others run") {
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--requests - --json --max-new-tokens 1",
                                     "{\"prompt\": \"A\", \"arrival\": -1}\n"
                                     "{\"prompt\": \"A\", \"arrival\": \"soon\"}\n"
                                     "{\"prompt\": \"A\", \"arrival\": 86401}\n"
                                     "{\"prompt\": \"A\", \"arrival\": 0}\n");
  CHECK(run.status == 1);
  CHECK(run.json()["sequences"].size() == 1);
  for (const char* part :
       {"line 1: arrival is -1", "line 2: arrival is \"soon\"", "line 3: arrival is 86401"}) {
    CAPTURE(part);
    CHECK_MESSAGE(run.err.find(part) != std::string::npos, run.err);
  }
}

TEST_CASE("requests have the cache, and one text each") {
  for (const char* wrong : {"--no-use-cache", "--do-sample --num-return-sequences 2"}) {
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM, fmt::format("--requests - {}", wrong), "{\"prompt\": \"A\"}\n");
    CHECK(run.status == 2);
    CHECK(run.err == "error: --requests cannot be combined with --num-return-sequences or --no-use-cache\n");
  }
}
