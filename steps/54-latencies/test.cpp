#include <doctest/doctest.h>

#include <fstream>
#include <numeric>

#include "common/measure/measurement.h"
#include "latencies.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/toy_engine.h"

using namespace staircase;

namespace {

using Times = std::vector<double>;

Request request(int number, double arrival, int prompt_length, int count) {
  Request request{number, arrival, std::vector<int>(prompt_length, 1 + number)};
  request.options.stopping = {.max_new_tokens = count, .ignore_eos = true};
  return request;
}

/// What a trace recorded of requests on a clock that advances by a second per pass.
struct Watched {
  ToyEngine toy;
  Trace trace;
  std::vector<int> heard;  ///< the numbers of the tokens' texts, in their order

  Watched(const std::vector<Request>& requests, int slots, std::optional<int> chunk = {})
      : toy(slots), trace(requests, toy.timer()) {
    WatchedEngine engine(toy, trace);
    Scheduler scheduler(engine, tales_tokenizer(), slots, {chunk},
                        trace.watch([&](int number, const Token&) { heard.push_back(number); }),
                        [](int, const Generation&) {});
    serve(scheduler, requests, trace.timer);
  }
};

}  // namespace

TEST_CASE("a trace records when each text was requested, joined and grew, and how full the passes were") {
  const Watched got(
      {request(0, 0.0, 3, 3), request(1, 0.0, 3, 1), request(2, 10.0, 3, 1), request(3, 0.5, 3, 2)}, 2);
  const std::vector<TextTimes>& texts = got.trace.texts;
  CHECK(texts[0].tokens == Times{1, 2, 3});
  CHECK(texts[1].tokens == Times{1});
  CHECK(texts[3].arrival == 0.5);
  CHECK(texts[3].joined == 1.0);
  CHECK(texts[3].tokens == Times{2, 3});
  CHECK(texts[2].joined == 10.0);
  CHECK(texts[2].tokens == Times{11});
  CHECK(got.trace.passes == 4);
  CHECK(got.trace.rows == 7);
  CHECK(got.toy.rows == std::vector<int>{2, 2, 2, 1});
  CHECK(got.heard == std::vector<int>{0, 1, 0, 3, 0, 3, 2});
  const Latencies times = latencies(texts);
  CHECK(times.ttft == Times{1000, 1000, 1000, 1500});
  CHECK(times.tpot == Times{1000, 1000});
  CHECK(times.itl == Times{1000, 1000, 1000});
  CHECK(times.seconds == 11.0);
  CHECK(times.tokens_per_second == 7.0 / 11.0);
}

TEST_CASE("a row joins with the first part of its prompt, and counts in each pass that has a part of it") {
  const Watched got({request(0, 2.0, 10, 2)}, 1, 4);
  CHECK(got.trace.texts[0].joined == 2.0);
  CHECK(got.trace.texts[0].tokens == Times{5, 6});
  CHECK(got.trace.passes == 4);
  CHECK(got.trace.rows == 4);
}

TEST_CASE("latencies are those of a table computed by hand") {
  // The second text stalls between its first two tokens, the third has only one, the last none.
  const std::vector<TextTimes> texts{
      {1.0, 1.0, {1.5, 2.0, 2.25}}, {0.5, 1.0, {1.25, 3.25, 3.5}}, {2.0, 2.0, {2.125}}, {9.0, {}, {}}};
  const Latencies times = latencies(texts);
  CHECK(times.ttft == Times{500, 750, 125});
  CHECK(times.tpot == Times{375, 1125});
  CHECK(times.itl == Times{500, 250, 2000, 250});
  CHECK(times.seconds == 3.0);  // from 0.5 to 3.5
  CHECK(times.tokens_per_second == doctest::Approx(7.0 / 3.0));
}

TEST_CASE("a text without a token counts as an arrival, whether it is the first or not") {
  const TextTimes first{.arrival = 1.0}, later{.arrival = 3.0, .tokens = {5.0, 6.0}};
  for (const std::vector<TextTimes>& texts : {std::vector<TextTimes>{first, later}, {later, first}}) {
    CHECK(latencies(texts).seconds == 5.0);
    CHECK(latencies(texts).tokens_per_second == 2 / 5.0);
    CHECK(latencies(texts).ttft == std::vector<double>{2000.0});
  }
}

TEST_CASE("without measurements there are no latencies, and no division by zero") {
  const std::vector<TextTimes> none;
  for (const std::vector<TextTimes>& texts : {none, {{5.0, {}, {}}}, {{5.0, 5.0, {5.0}}}}) {
    const Latencies times = latencies(texts);
    CHECK(times.tpot.empty());
    CHECK(times.seconds == 0.0);
    CHECK(times.tokens_per_second == 0.0);
  }
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--requests - --json --max-new-tokens 0",
                                     "{\"prompt\": \"The\"}\n{\"prompt\": \"A\"}\n");
  REQUIRE(run.status == 0);
  auto stats = run.json()["stats"];
  CHECK(stats["tokens_per_second"] == 0.0);
  CHECK(!stats.contains("ttft_ms_p50"));
  CHECK(contains(run.err, "2 requests in 0.00 s, 0.0 tokens/s, 0.0 rows a pass\n"));
}

TEST_CASE("the program prints the latencies of its requests, on a line and among the statistics") {
  std::string file;
  for (int i = 0; i < 5; ++i) {
    file += fmt::format(
        "{{\"prompt\": \"The wolf\", \"max_new_tokens\": {}, \"ignore_eos\": true, \"arrival\": {}}}\n",
        1 + 4 * i, 0.01 * i);
  }
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM, "--requests - --max-batch-size 2 --prefill-chunk 3 --json", file);
  REQUIRE(run.status == 0);
  const auto got = run.json();
  auto stats = got["stats"];
  for (const char* name : {"ttft", "tpot", "itl"}) {
    const double half = stats[fmt::format("{}_ms_p50", name)], most = stats[fmt::format("{}_ms_p95", name)],
                 all = stats[fmt::format("{}_ms_p99", name)];
    CHECK(half > 0.0);
    CHECK(half <= most);
    CHECK(most <= all);
    CHECK(run.err.find(fmt::format(" {:.1f} (p50), {:.1f} (p95), {:.1f} (p99)", half, most, all)) !=
          std::string::npos);
  }
  CHECK(stats["prefill_ms"] == stats["ttft_ms_p50"]);
  CHECK(stats["new_tokens"] == 45);
  CHECK(contains(run.err, "5 requests in"));
  CHECK(contains(run.err, " rows a pass; TTFT in ms: "));
  const ProgramRun one =
      run_program(STAIRCASE_STEP_PROGRAM, "--requests - --max-new-tokens 1", "{\"prompt\": \"A\"}");
  CHECK(contains(one.err, "1 request in"));
  CHECK(one.err.find("TPOT in ms") == std::string::npos);
}

TEST_CASE("tokens/s are all new tokens by the time from the first arrival to the last token, in every line") {
  // The first token of a text also counts.
  const ProgramRun apart = run_program(STAIRCASE_STEP_PROGRAM, "--requests - --json --max-new-tokens 1",
                                       "{\"prompt\": \"The\"}\n{\"prompt\": \"A\", \"arrival\": 0.4}\n");
  REQUIRE(apart.status == 0);
  const double rate = apart.json()["stats"]["tokens_per_second"];
  CHECK(rate > 0.5);
  CHECK(rate <= 2 / 0.4);
  // The time before the first arrival does not count.
  const ProgramRun late =
      run_program(STAIRCASE_STEP_PROGRAM, "--requests - --json --max-new-tokens 4 --ignore-eos",
                  "{\"prompt\": \"The\", \"arrival\": 2}\n");
  REQUIRE(late.status == 0);
  CHECK(late.json()["stats"]["tokens_per_second"] > 4 / 2.0);

  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--requests - --json --max-new-tokens 9",
                                     "{\"prompt\": \"The\"}\n{\"prompt\": \"A\"}\n");
  REQUIRE(run.status == 0);
  const double told = run.json()["stats"]["tokens_per_second"];
  const std::string want = fmt::format(" {:.1f} tokens/s", told);
  CAPTURE(run.err);
  const std::size_t first = run.err.find(want);
  REQUIRE(first != std::string::npos);
  CHECK(contains(run.err.substr(first + 1), want));
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
