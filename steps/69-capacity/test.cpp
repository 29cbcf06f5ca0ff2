#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <numeric>
#include <random>

#include "capacity.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/toy_engine.h"

using namespace staircase;

namespace {

/// Servers whose caches have room for every text.
Server servers(int slots, int replicas = 1, bool least_busy = false) {
  return {{slots, replicas, least_busy},
          tales(),
          tales_tokenizer(),
          {},
          {.prefix_caching = false, .blocks = slots * blocks_for(512)}};
}

/// Each request is a single pass.
Workload single_passes(int requests, unsigned seed = 1) {
  return {.requests = requests, .common_tokens = 0, .prompt_tokens = 1, .new_tokens = 1, .seed = seed};
}

/// The mean time from the arrival to the first token, in seconds.
double mean_wait(const std::vector<TextTimes>& times) {
  double sum = 0.0;
  for (const TextTimes& text : times) sum += text.tokens.front() - text.arrival;
  return sum / static_cast<double>(times.size());
}

/// Equal up to a share of the value, even of a small one: Approx alone would add 1 to the value.
doctest::Approx about(double value, double share) {
  return doctest::Approx(value).epsilon(share).scale(0.0);
}

}  // namespace

TEST_CASE(
    "with one place and passes of one length, requests wait as long as Pollaczek and Khinchine "
    "predict") {
  constexpr double kPass = 0.01;
  for (const double utilization : {0.3, 0.6, 0.8}) {
    const auto requests = random_requests(single_passes(60'000), utilization / kPass, 512);
    const double want = kPass + utilization * kPass / (2.0 * (1.0 - utilization));
    CHECK(mean_wait(simulate(servers(1), {kPass}, requests)) == about(want, 0.05));
  }
}

TEST_CASE("a single server does what the scheduler does with the same passes") {
  std::mt19937 generator(3);
  for (int round = 0; round < 20; ++round) {
    const int slots = 1 + static_cast<int>(generator() % 5);
    Server server = servers(slots);
    if (round % 2 == 1) server.prefill.chunk = 1 + static_cast<int>(generator() % 20);
    const Workload load{.requests = 40, .common_tokens = 3, .prompt_tokens = 9, .new_tokens = 6};
    const auto requests = random_requests(load, 0.1 * (1 + round % 4), 512);
    std::vector<Request> same;
    for (const RandomRequest& request : requests) {
      same.push_back({static_cast<int>(same.size()), request.arrival, request.prompt});
      same.back().options.stopping = {.max_new_tokens = request.new_tokens, .ignore_eos = true};
    }
    ToyEngine toy(slots);  // a pass of this engine takes a second
    Trace trace(same, toy.timer());
    WatchedEngine engine(toy, trace);
    Scheduler scheduler(engine, tales_tokenizer(), slots, server.prefill,
                        trace.watch([](int, const Token&) {}), [](int, const Generation&) {});
    serve(scheduler, same, trace.timer);
    const std::vector<TextTimes> got = simulate(server, {1.0}, requests);
    REQUIRE(got.size() == same.size());
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i].tokens == trace.texts[i].tokens);
  }
}

TEST_CASE("a pass takes the cost of its rows, tokens and positions") {
  const std::vector<RandomRequest> one{{0.0, std::vector<int>(20, 7), 3}};
  const PassCost cost{1000.0, 100.0, 10.0, 1.0};
  // The prompt attends to 1 + 2 + … + 20 = 210 positions, the two tokens after it to 21 and 22.
  CHECK(simulate(servers(4), cost, one)[0].tokens == std::vector<double>{1510, 2641, 3773});
}

TEST_CASE("as many requests are in a server as arrive during the stay of one of them (Little's law)") {
  const double rate = 40.0;
  const auto requests = random_requests({.requests = 20'000}, rate, 512);
  const auto times = simulate(servers(8), {0.002, 0.0002, 0.00005, 0.0}, requests);
  double in_there = 0.0;
  std::vector<std::pair<double, int>> changes;
  for (const TextTimes& text : times) {
    in_there += text.tokens.back() - text.arrival;
    changes.push_back({text.arrival, 1});
    changes.push_back({text.tokens.back(), -1});
  }
  std::ranges::sort(changes);
  // Sampled every 10 ms.
  double seen = 0.0;
  int now = 0, looks = 0;
  auto next = changes.begin();
  for (double time = 0.0; next != changes.end(); time += 0.01, ++looks, seen += now)
    while (next != changes.end() && next->first <= time) now += (next++)->second;
  CHECK(seen / looks == about(rate * in_there / static_cast<double>(times.size()), 0.05));
}

TEST_CASE("a balancer that prefers the least busy server shortens the wait") {
  const Workload load{.requests = 20'000, .common_tokens = 0, .prompt_tokens = 5, .new_tokens = 20};
  const auto requests = random_requests(load, 4 * 0.8 / (0.01 * 20), 512);
  const PassCost cost{0.01};
  const double alone = mean_wait(simulate(servers(1, 4), cost, requests));
  const double balanced = mean_wait(simulate(servers(1, 4, true), cost, requests));
  CHECK(balanced < 0.6 * alone);
}

TEST_CASE("requests sent in turns are served as if each server were alone") {
  const auto requests = random_requests({.requests = 300}, 50.0, 512);
  const PassCost cost{0.01, 0.001};
  const auto both = simulate(servers(4, 2), cost, requests);
  for (std::size_t first = 0; first < 2; ++first) {
    std::vector<RandomRequest> own;
    for (std::size_t i = first; i < requests.size(); i += 2) own.push_back(requests[i]);
    const auto alone = simulate(servers(4), cost, own);
    for (std::size_t i = 0; i < alone.size(); ++i) CHECK(alone[i].tokens == both[first + 2 * i].tokens);
  }
}

TEST_CASE("a request that finds the beginning of its prompt in the cache feeds only the rest") {
  Server server = servers(1);
  const std::vector<RandomRequest> two{{0.0, std::vector<int>(40, 7), 1},
                                       {100.0, std::vector<int>(40, 7), 1}};
  const PassCost cost{0.0, 0.0, 1.0};
  CHECK(simulate(server, cost, two)[1].tokens[0] == 140.0);
  server.paged.prefix_caching = true;
  CHECK(simulate(server, cost, two)[1].tokens[0] == 108.0);  // 32 tokens are in two blocks
}

TEST_CASE("few blocks make texts wait that would have had a place") {
  Server server = servers(4);
  const std::vector<RandomRequest> four(4, {0.0, std::vector<int>(30, 7), 2});
  CHECK(simulate(server, {1.0}, four)[3].tokens == std::vector<double>{1, 2});
  server.paged.blocks = 2;
  CHECK(simulate(server, {1.0}, four)[3].tokens == std::vector<double>{7, 8});
}

TEST_CASE("the measured passes are those of the model") {
  const std::vector<RandomRequest> six(6, {0.0, std::vector<int>(10, 7), 5});
  const std::vector<MeasuredPass> passes = measure(servers(2), six);
  int tokens = 0, most = 0;
  for (const MeasuredPass& pass : passes) {
    tokens += pass.tokens;
    most = std::max(most, pass.rows);
    CHECK(pass.seconds > 0.0);
  }
  CHECK(most == 2);
  // With one slot there are 30 passes, with two half as many; the last pass of each run is not measured. The
  // newest token of a text is never fed.
  CHECK(passes.size() == 29 + 14);
  CHECK(tokens == 2 * 6 * (10 + 4) - 1 - 2);
}

TEST_CASE("servers of two ranks have a higher knee over a fast link, and a lower one over a slow link") {
  const auto requests = random_requests({.requests = 300}, kAllAtOnce, 512);
  const auto seconds = [&](int ranks, float us) {
    FleetOptions fleet = servers(4);
    fleet.ranks = ranks;
    fleet.link_us = us;
    const PassCost cost = shared({1e-3, 1e-4, 1e-4, 1e-7}, fleet, tales().config());
    return latencies(simulate(servers(4), cost, requests)).seconds;
  };
  const double alone = seconds(1, 0.0f);
  CHECK(seconds(2, 1.0f) < 0.65 * alone);
  CHECK(seconds(2, 1000.0f) > alone);
}

TEST_CASE("the program prints how close its formula is, where the knee is, and how long requests wait") {
  const TemporaryFolder folder;
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM,
                                     "--max-batch-size 2 --num-requests 50 --new-tokens 4 --rates 5 --rates "
                                     "1000000 --benchmark " +
                                         folder.path().string());
  const bool has_gnuplot = std::system("command -v gnuplot >/dev/null") == 0;
  REQUIRE(run.status == (has_gnuplot ? 0 : 1));
  CHECK(contains(run.err, "by the formula"));
  CHECK(contains(run.err, "the knee"));
  std::ifstream stream(folder.path() / "capacity.json");
  const auto rows = nlohmann::json::parse(stream);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0]["requests/s"] == 5.0);
  CHECK(rows[1]["of the knee"] > 1.0);
  for (const auto& row : rows) {
    CHECK(row["TTFT ms p50"] > 0.0);
    CHECK(row["TTFT ms p50"] <= row["TTFT ms p95"]);
    CHECK(row["TTFT ms p95"] <= row["TTFT ms p99"]);
  }
  CHECK(rows[1]["TTFT ms p50"] > rows[0]["TTFT ms p50"]);
}

TEST_CASE("an impossible load is refused") {
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--common-tokens 256 --num-requests 5");
  CHECK(run.status == 2);
  CHECK(contains(run.err, "--common-tokens is 256, but it must be below 256"));
  const std::vector<std::pair<std::string, std::string>> wrong{
      {"--common-tokens 300 --kv-blocks 1000000000", "--common-tokens is 300, but it must be below 256"},
      {"--num-requests 0", "--num-requests is 0, but it must be between 1 and 1000000"},
      {"--num-requests 2000000", "--num-requests is 2000000, but it must be between 1 and 1000000"},
      {"--rates 0", "--rates is 0, but it must be 1 or more"},
      {"--rates=-5", "--rates is -5, but it must be 1 or more"},
      {"--rates nan", "--rates is nan, but it must be a whole number of 1 or more"},
      {"--max-batch-size 65", "--max-batch-size is 65, but it must be between 1 and 64"},
      {"--replicas 65", "--replicas is 65, but it must be between 1 and 64"},
      {"--ranks 0", "--ranks is 0, but it must be between 1 and 64"},
      {"--link-gbit 0", "--link-gbit is 0, but it must be a number above 0"},
      {"--link-us=-1", "--link-us is -1, but it must be a number of 0 or more"}};
  for (const auto& [arguments, sentence] : wrong) {
    const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, arguments);
    CHECK(refused.status == 2);
    CHECK_MESSAGE(refused.err.find(sentence) != std::string::npos, refused.err);
  }
}
