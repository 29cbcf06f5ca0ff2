#include <doctest/doctest.h>

#include <fstream>
#include <numeric>
#include <random>

#include "benchmark_serving.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/toy_engine.h"

using namespace staircase;

namespace {

using Times = std::vector<double>;

Request request(int number, double arrival, int prompt_length, int count) {
  Request request{number, arrival, std::vector<int>(prompt_length, 1 + number % 28)};
  request.options.stopping = {.max_new_tokens = count, .ignore_eos = true};
  return request;
}

/// What happened to requests on a clock that advances by a second per pass.
struct Watched {
  ToyEngine toy;
  Trace trace;
  std::vector<Generation> texts;

  Watched(const std::vector<Request>& requests, int slots, bool in_static_batches,
          std::optional<int> chunk = {})
      : toy(slots), trace(requests, toy.timer()), texts(requests.size()) {
    WatchedEngine engine(toy, trace);
    Scheduler scheduler(engine, tales_tokenizer(), slots, {chunk}, trace.watch([](int, const Token&) {}),
                        [&](int number, Generation text) { texts[number] = std::move(text); });
    if (in_static_batches) {
      serve_in_static_batches(scheduler, requests, slots, trace.timer);
    } else {
      serve(scheduler, requests, trace.timer);
    }
    CHECK(scheduler.idle());
  }
};

std::vector<Request> random_load(std::mt19937& generator) {
  std::vector<Request> requests;
  for (int i = 0; i < 14; ++i) {
    requests.push_back(request(i, generator() % 40 / 2.0, 1 + static_cast<int>(generator() % 30),
                               static_cast<int>(generator() % 9)));
  }
  return requests;
}

}  // namespace

TEST_CASE(
    "a static batch consists of the texts that have arrived, and the next begins when all of them "
    "have ended") {
  const std::vector<Request> requests{request(0, 0.0, 3, 3), request(1, 0.0, 3, 1), request(2, 10.0, 3, 1),
                                      request(3, 0.5, 3, 2)};
  const Watched got(requests, 2, true);
  CHECK(got.trace.texts[0].tokens == Times{1, 2, 3});
  CHECK(got.trace.texts[1].tokens == Times{1});
  CHECK(got.trace.texts[3].joined == 3.0);
  CHECK(got.trace.texts[3].tokens == Times{4, 5});
  CHECK(got.trace.texts[2].tokens == Times{11});
  CHECK(got.toy.rows == std::vector<int>{2, 1, 1, 1, 1, 1});
  // A free slot does not help requests that arrive a little later, and no more join than there are slots.
  const Watched full(
      {request(0, 0.0, 1, 2), request(1, 0.5, 1, 1), request(2, 0.0, 1, 2), request(3, 0.0, 1, 2)}, 2, true);
  CHECK(full.trace.texts[0].joined == 0.0);
  CHECK(full.trace.texts[2].joined == 0.0);
  CHECK(full.trace.texts[3].joined == 2.0);
  CHECK(full.trace.texts[1].joined == 2.0);
}

TEST_CASE("static batches never overlap, and their texts are the same as alone") {
  std::mt19937 generator(6);
  for (int round = 0; round < 100; ++round) {
    const std::vector<Request> requests = random_load(generator);
    const int slots = 1 + static_cast<int>(generator() % 5);
    const Watched got(requests, slots, true);
    CHECK(std::ranges::max(got.toy.rows) <= slots);
    for (const Request& one : requests) {
      CHECK(got.texts[one.number].tokens == ToyEngine::alone(one.prompt, one.options).tokens);
      const TextTimes& text = got.trace.texts[one.number];
      if (text.tokens.empty()) continue;
      CHECK(text.joined >= one.arrival);
      for (const TextTimes& other : got.trace.texts) {  // later arrivals join when this one is done
        if (!other.tokens.empty() && *other.joined > *text.joined) CHECK(*other.joined >= text.tokens.back());
      }
    }
  }
}

TEST_CASE("a line has the rates, the gain of each round, and the latencies of all runs") {
  const auto text = [](double first, double step, int count) {
    TextTimes times;
    for (int i = 0; i < count; ++i) times.tokens.push_back(first + step * i);
    return times;
  };
  Way before{.name = "static", .rates = {2.0, 5.0, 4.0}, .texts = {{1}, {2}, {3}}}, way{"other"};
  way.rates = {6.0, 10.0, 2.0};
  way.times = {text(0.1, 0.01, 2), text(0.3, 0.03, 3)};
  way.texts = {{1}, {9}, {3}};
  way.rows_a_pass = 1.5;
  way.filled = 25.0;
  // TTFT 100 and 300 ms, TPOT 10 and 30, ITL 10, 30 and 30; gains of 3, 2 and 0.5.
  const std::vector<Table::Cell> line = figures(way, before);
  REQUIRE(line.size() == 20);
  CHECK(std::get<std::string>(line[0]) == "other");
  CHECK(std::get<double>(line[1]) == 6.0);
  CHECK(std::get<double>(line[4]) == 2.0);
  CHECK(std::get<int>(line[5]) == 2);
  CHECK(std::get<double>(line[6]) == 1.5);
  CHECK(std::get<double>(line[7]) == 25.0);
  const auto latency = [&](int index) { return std::get<double>(line[static_cast<std::size_t>(index)]); };
  for (const auto& [first, median, most] :
       {std::tuple(8, 200.0, 300.0), {12, 20.0, 30.0}, {16, 30.0, 30.0}}) {
    CHECK(latency(first) == doctest::Approx(median));
    CHECK(latency(first + 3) == doctest::Approx(most));
    CHECK(latency(first + 1) <= latency(first + 2));
    if (median < most) CHECK(latency(first + 2) < most);
  }
}

TEST_CASE("the benchmark measures each way of batching on the same requests") {
  const TemporaryFolder folder;
  std::string file;
  for (int i = 0; i < 7; ++i) {
    file += fmt::format("{{\"prompt\": \"The wolf and the fox\", \"max_new_tokens\": {}, \"arrival\": {}}}\n",
                        3 + 11 * i % 17, 0.01 * i);
  }
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM,
                  "--requests - --max-batch-size 3 --prefill-chunk 2 --repetitions 2 --benchmark " +
                      folder.path().string(),
                  file);
  REQUIRE(run.status == 0);
  CHECK(std::filesystem::exists(folder.path() / "serving.csv"));
  std::ifstream stream(folder.path() / "serving.json");
  const auto rows = nlohmann::json::parse(stream);
  REQUIRE(rows.size() == 3);
  CHECK(rows[0]["batching"] == "static");
  CHECK(rows[1]["batching"] == "continuous");
  CHECK(rows[2]["batching"] == "chunks of 2");
  CHECK(rows[0]["speed-up"] == 1.0);
  for (const auto& row : rows) {
    CHECK(row["same texts"] == 7);
    CHECK(row["tokens/s"] > 0.0);
    CHECK(row["low"] <= row["tokens/s"]);
    CHECK(row["tokens/s"] <= row["high"]);
    CHECK(row["rows a pass"] >= 1.0);
    CHECK(row["rows a pass"] <= 3.0);
    for (const std::string name : {"TTFT", "TPOT", "ITL"}) {
      CHECK(row[name + " ms p50"] > 0.0);
      CHECK(row[name + " ms p50"] <= row[name + " ms p95"]);
      CHECK(row[name + " ms p95"] <= row[name + " ms p99"]);
      CHECK(row[name + " ms p99"] <= row[name + " ms max"]);
    }
    // Three rows of 512 positions; a text has 7 prompt tokens and at most 19 new ones.
    CHECK(row["filled %"] > 100.0 * 7 / (3 * 512));
    CHECK(row["filled %"] <= 100.0 * 26 / 512);
  }
}

TEST_CASE("the cache is as full as the texts are long, in all of its rows together") {
  const TemporaryFolder folder;
  std::string file;
  for (int i = 0; i < 3; ++i)
    file += "{\"prompt\": \"The wolf\", \"max_new_tokens\": 40, \"ignore_eos\": true}\n";
  run_program(STAIRCASE_STEP_PROGRAM, "--requests - --repetitions 1 --benchmark " + folder.path().string(),
              file);
  std::ifstream stream(folder.path() / "serving.json");
  const auto rows = nlohmann::json::parse(stream);
  REQUIRE(rows.size() == 3);
  // The last token of a text is not in the cache.
  const auto positions = Tokenizer::load(find_model("tales-6m")).encode("The wolf").size() + 39;
  for (const auto& row : rows) {
    CHECK(row["filled %"] == doctest::Approx(100.0 * static_cast<double>(positions) / 512));
    CHECK(row["rows a pass"] == 3.0);
  }
}

TEST_CASE("a benchmark that cannot be run is refused") {
  const std::string request = "{\"prompt\": \"The\", \"max_new_tokens\": 1}\n";
  const TemporaryFolder folder;
  const ProgramRun none =
      run_program(STAIRCASE_STEP_PROGRAM, "--prompt The --benchmark " + folder.path().string());
  CHECK(none.status == 2);
  CHECK(contains(none.err, "--benchmark needs --requests"));
  const ProgramRun never = run_program(
      STAIRCASE_STEP_PROGRAM, "--requests - --repetitions 0 --benchmark " + folder.path().string(), request);
  CHECK(never.status == 2);
  CHECK(contains(never.err, "--repetitions is 0"));
  const ProgramRun nowhere =
      run_program(STAIRCASE_STEP_PROGRAM, "--requests - --benchmark /proc/no/such/folder", request);
  CHECK(nowhere.status == 1);
  CHECK(contains(nowhere.err, "cannot be made"));
}

TEST_CASE("without a benchmark the requests are served") {
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--requests - --json --max-new-tokens 3",
                                     "{\"prompt\": \"The\"}\n{\"prompt\": \"A\"}\n");
  REQUIRE(run.status == 0);
  CHECK(run.json()["sequences"].size() == 2);
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
