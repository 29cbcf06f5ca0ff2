#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <random>

#include "latencies.h"
#include "tests/captured.h"
#include "tests/error_message.h"
#include "tests/plot_script.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/toy_engine.h"
#include "timeline.h"

using namespace staircase;

namespace {

Request request(int number, double arrival, int prompt_length, int count) {
  Request request{number, arrival, std::vector<int>(prompt_length, 1 + number % 28)};
  request.options.stopping = {.max_new_tokens = count, .ignore_eos = true};
  return request;
}

/// What a trace recorded of requests on a clock that advances by a second per pass.
struct Watched {
  ToyEngine toy;
  Trace trace;

  Watched(const std::vector<Request>& requests, int slots, std::optional<int> chunk)
      : toy(slots), trace(requests, toy.timer()) {
    WatchedEngine engine(toy, trace);
    Scheduler scheduler(engine, tales_tokenizer(), slots, {chunk}, trace.watch([](int, const Token&) {}),
                        [](int, const Generation&) {});
    serve(scheduler, requests, trace.timer);
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

const std::string kRequests =
    "{\"prompt\": \"The wolf\", \"max_new_tokens\": 9}\n{\"prompt\": \"A\", \"max_new_tokens\": 3}\n";

}  // namespace

TEST_CASE("the timeline has at most as many lanes as the batch has slots, and no two bars of one overlap") {
  std::mt19937 generator(4);
  for (int round = 0; round < 60; ++round) {
    const std::vector<Request> requests = random_load(generator);
    const int slots = 1 + round % 5;
    const Watched got(requests, slots, 1 + round % 20);
    const std::vector<TimelineBar> all = bars(got.trace.texts);
    std::ptrdiff_t growing = 0, decoding = 0;
    for (const TextTimes& text : got.trace.texts) {
      growing += !text.tokens.empty();
      decoding += text.tokens.size() > 1;
    }
    CHECK(std::ranges::count(all, 0u, &TimelineBar::kind) == growing);
    CHECK(std::ranges::count(all, 1u, &TimelineBar::kind) == decoding);
    for (const TimelineBar& bar : all) {
      CHECK(bar.lane >= 1);
      CHECK(bar.lane <= slots);
      CHECK(bar.from < bar.to);
      for (const TimelineBar& other : all) {
        CHECK((&other == &bar || other.lane != bar.lane || other.from >= bar.to || other.to <= bar.from));
      }
    }
  }
}

TEST_CASE("a bar is on the lowest lane that is free") {
  const std::vector<TimelineBar> all =
      bars({{0.0, 0.0, {1.0, 4.0}}, {0.0, 0.0, {1.0, 2.0}}, {0.0, {}, {}}, {0.0, 2.0, {3.0}}});
  std::vector<std::vector<double>> got;
  for (const TimelineBar& bar : all)
    got.push_back({1.0 * bar.lane, bar.from, bar.to, 1.0 * static_cast<int>(bar.kind)});
  CHECK(got == std::vector<std::vector<double>>{
                   {1, 0, 1, 0}, {1, 1, 4, 1}, {2, 0, 1, 0}, {2, 1, 2, 1}, {2, 2, 3, 0}});
}

TEST_CASE("a lane is empty before, between and after its bars, until the last bar of all ends") {
  CHECK(empty_part({{1, 0.0, 1.0, 0}, {1, 1.0, 4.0, 1}, {2, 0.5, 1.0, 0}, {2, 2.0, 3.5, 0}}) == 0.25);
  CHECK(empty_part({{1, 0.0, 2.0, 0}}) == 0.0);
  CHECK(empty_part({}) == 0.0);
}

TEST_CASE("the empty time is printed in percent") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "rows.svg").string();
  const Captured lines(stderr);
  try {
    // Of two lanes of four seconds, the second is in use for one.
    draw({{0.0, 0.0, {1.0, 4.0}}, {0.0, 0.0, {0.5, 1.0}}}, file);
  } catch (const Error&) {  // without gnuplot
    return;
  }
  CHECK(lines.text() == file + ": the rows are empty for 38 % of the time\n");
}

TEST_CASE("the program draws the rows of the batch, and prints what it prints without the drawing") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "rows.svg").string();
  const std::string line = "--requests - --max-batch-size 2 --max-new-tokens 5 ";
  const ProgramRun drawn = run_program(STAIRCASE_STEP_PROGRAM, line + "--timeline " + file, kRequests);
  const bool has_gnuplot = std::system("command -v gnuplot >/dev/null") == 0;
  REQUIRE(drawn.status == (has_gnuplot ? 0 : 1));
  CHECK(drawn.out == run_program(STAIRCASE_STEP_PROGRAM, line, kRequests).out);
  if (!has_gnuplot) return;
  CHECK(contains(drawn.err, "rows.svg: the rows are empty for "));
  std::ifstream stream(file);
  const std::string svg{std::istreambuf_iterator<char>(stream), {}};
  for (const std::string word : {"seconds", "row", "prefill", "decode"}) CHECK(contains(svg, word));
  const PlotScript script;
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, line + "--timeline " + file, kRequests).status == 0);
  CHECK(contains(PlotScript::text(file), axes("seconds", "row")));
}

TEST_CASE("a file that cannot be written is refused before anything is served") {
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM, "--requests - --timeline /proc/none/rows.svg", kRequests);
  CHECK(run.status == 1);
  CHECK(run.out.empty());
  CHECK(contains(run.err, "/proc/none/rows.svg"));
}

TEST_CASE("without requests there is nothing to draw") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "rows.svg").string();
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM, "--prompt The --max-new-tokens 2 --timeline " + file);
  CHECK(run.status == 0);
  CHECK(contains(run.err, "--timeline does nothing without --requests"));
  CHECK(!std::filesystem::exists(file));
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
