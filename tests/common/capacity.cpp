// Loads, costs of passes, and the results of many rates.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/base/file.h"
#include "common/measure/arrival_sweep.h"
#include "common/measure/measurement.h"
#include "common/measure/pass_cost.h"
#include "common/measure/quantile.h"
#include "tests/captured.h"
#include "tests/error_message.h"
#include "tests/plot_script.h"
#include "tests/temporary_folder.h"

namespace staircase {
namespace {

/// Equal up to a share of the value, even of a small one: Approx alone would add 1 to the value.
doctest::Approx about(double value, double share) {
  return doctest::Approx(value).epsilon(share).scale(0.0);
}

/// Passes with the cost that `check_cost` is to find.
std::vector<MeasuredPass> made_passes() {
  std::vector<MeasuredPass> passes;
  for (int i = 0; i < 400; ++i) {
    MeasuredPass pass{1 + i % 16, 1 + i % 16 + (i % 7 == 0 ? 5 * i % 200 : 0), 50.0 * (1 + i % 16) + i % 31,
                      0.0};
    pass.seconds = PassCost{1e-3, 2e-4, 3e-5, 4e-7}.seconds(pass);
    passes.push_back(pass);
  }
  return passes;
}

void check_cost(const PassCost& cost) {
  CHECK(cost.pass == about(1e-3, 0.01));
  CHECK(cost.row == about(2e-4, 0.01));
  CHECK(cost.token == about(3e-5, 0.01));
  CHECK(cost.position == about(4e-7, 0.01));
}

TEST_CASE("the cost of simulated passes is found again") {
  check_cost(fit(made_passes()));
}

TEST_CASE("a delay of a pass in one turn only does not count") {
  int calls = 0;
  check_cost(fit([&](unsigned) {
    std::vector<MeasuredPass> passes = made_passes();
    for (std::size_t i = static_cast<std::size_t>(calls++ % 3); i < passes.size(); i += 3)
      passes[i].seconds *= 5.0;
    return passes;
  }));
}

TEST_CASE("the cost is printed, and how far it is from passes that it was not fitted to") {
  const auto printed = [](double longer) {
    Captured captured(stderr);
    fit([&](unsigned seed) {
      std::vector<MeasuredPass> passes = made_passes();
      if (seed == 2) {  // of four, three take longer and one less
        passes.resize(4);
        for (MeasuredPass& pass : passes) pass.seconds *= &pass == &passes[1] ? 0.95 : longer;
      }
      return passes;
    });
    return captured.text();
  };
  const std::vector<MeasuredPass> passes = made_passes();
  double sum = 0.0;
  for (int i = 0; i < 4; ++i) sum += passes[static_cast<std::size_t>(i)].seconds;
  const auto expected = [&](double longer) {
    const double took = longer * sum + (0.95 - longer) * passes[1].seconds;
    return fmt::format(
        "a pass takes 1 ms plus 0.2 ms a row, 0.03 ms a token and 0.0004 ms a position; fitted to 400 "
        "passes\n"
        "4 other passes took {:.3f} s, and {:.3f} s by the formula: {:+.1f} %; half of them differ by less "
        "than {:.1f} %\n",
        took, sum, 100.0 * (sum / took - 1.0), 100.0 * (1.0 - 1.0 / longer));
  };
  const std::string off =
      "warning: the formula is off by more than 10 %; on an idle machine it may be closer\n";
  CHECK(printed(1.02) == expected(1.02));
  CHECK(printed(1.5) == expected(1.5) + off);
}

TEST_CASE("a rank of several computes its part, and waits for calls and bytes") {
  ModelConfig config{.vocab_size = 4096, .n_embd = 128};
  config.n_layer = 4;
  FleetOptions fleet;
  fleet.ranks = 2;
  fleet.link_gbit = 0.032f;  // a number takes a microsecond
  fleet.link_us = 50.0f;
  const PassCost alone{1e-3, 2e-4, 3e-5, 4e-7};
  PassCost two;
  {
    Captured captured(stderr);
    two = shared(alone, fleet, config);
    CHECK(captured.text() ==
          "on 2 ranks a pass takes 1 ms, and 2.4 ms a row, 0.911 ms a token, 0.0002 ms a "
          "position; computed, not measured\n");
  }
  CHECK(two.pass == about(0.5e-3 + 10 * 50e-6, 1e-6));  // nine sums, and the logits
  CHECK(two.row == about(1e-4 + (2 * 128 + 2048 + 1) * 1e-6, 1e-6));
  CHECK(two.token == about(1.5e-5 + 7 * 128 * 1e-6, 1e-6));
  CHECK(two.position == about(2e-7, 1e-6));
  // A token of one row: what a rank receives in step 98, from each other rank.
  fleet.ranks = 3;
  const PassCost three = shared(alone, fleet, config);
  CHECK(three.row + three.token - (alone.row + alone.token) / 3 ==
        about(2 * (128 * 9 + 1366 + 1) * 1e-6, 1e-6));
  fleet.ranks = 1;
  CHECK(shared(alone, fleet, config).pass == alone.pass);
}

TEST_CASE("least squares never give a number below 0") {
  const std::vector<double> exact = non_negative_least_squares({{1, 0}, {1, 1}, {1, 2}}, {1, 3, 5});
  CHECK(exact[0] == doctest::Approx(1.0));
  CHECK(exact[1] == doctest::Approx(2.0));
  const std::vector<double> falls = non_negative_least_squares({{1, 0}, {1, 1}, {1, 2}}, {5, 3, 1});
  CHECK(falls[0] == doctest::Approx(3.0));  // their mean
  CHECK(falls[1] == 0.0);
}

TEST_CASE("requests arrive at the rate and have the requested lengths") {
  const Workload options{.requests = 40'000, .common_tokens = 5, .prompt_tokens = 20, .new_tokens = 30};
  const auto load = random_requests(options, 25.0, 1000);
  double prompts = 0.0, texts = 0.0, squares = 0.0, last = 0.0;
  for (const RandomRequest& request : load) {
    prompts += static_cast<double>(request.prompt.size());
    texts += request.new_tokens;
    squares += (request.arrival - last) * (request.arrival - last);
    last = request.arrival;
  }
  CHECK(last / 40'000 == about(0.04, 0.02));
  CHECK(squares / 40'000 == about(2 * 0.04 * 0.04, 0.05));  // of an exponential distribution
  CHECK(prompts / 40'000 == about(25.0, 0.02));
  CHECK(texts / 40'000 == about(30.0, 0.02));
  const auto faster = random_requests(options, 50.0, 1000);
  CHECK(faster[777].prompt == load[777].prompt);
  CHECK(faster[777].arrival == about(load[777].arrival / 2, 1e-9));
}

TEST_CASE("no text outgrows the positions that there are") {
  for (const RandomRequest& request :
       random_requests({.requests = 5000, .new_tokens = 90}, kAllAtOnce, 200)) {
    CHECK(request.arrival == 0.0);
    CHECK(request.prompt.size() + static_cast<std::size_t>(request.new_tokens) <= 201);
    CHECK(request.new_tokens >= 1);
  }
}

TEST_CASE("the knee of a server with a constant service time is where it is always busy") {
  const auto serve = [](const std::vector<RandomRequest>& requests) {
    Waiting waiting;
    double now = 0.0;
    for (const RandomRequest& request : requests) {
      now = std::max(now, request.arrival) + 0.02;
      waiting.ttft.push_back(1e3 * (now - request.arrival));
      waiting.tpot.push_back(waiting.ttft.back() / 8);
    }
    waiting.seconds = now - requests.front().arrival;
    return waiting;
  };
  const auto printed = [&](const SweepOptions& options) {
    Captured captured(stderr);
    CHECK(sweep(options, {.requests = 1000}, 512, serve) == doctest::Approx(50.0));
    return captured.text();
  };
  const std::string text = printed({});
  CHECK(contains(text, "the knee: from 50.00 requests/s on, the queue grows without bound"));
  const std::vector<double> shares = {0.5, 0.95, 0.99};
  // The times of the requests as they arrive at this rate, at each share, and those of their tokens.
  const auto expected = [&](double rate) {
    const Waiting waiting = serve(random_requests({.requests = 1000}, rate, 512));
    std::vector<double> times;
    for (const auto& of : {waiting.ttft, waiting.tpot})
      for (const double share : shares) times.push_back(quantile(of, share));
    return times;
  };
  // A tenth of the knee to a tenth beyond it.
  std::istringstream lines(text.substr(text.find("TPOT ms p99")));
  std::string line;
  std::getline(lines, line);
  for (const double rate : {5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 45.0, 47.5, 55.0}) {
    std::getline(lines, line);
    double found[8] = {};
    std::istringstream cells(line);
    for (double& cell : found) cells >> cell;
    CAPTURE(line);
    CHECK(found[0] == doctest::Approx(rate).epsilon(0.01));
    CHECK(found[1] == doctest::Approx(rate / 50.0).epsilon(0.01));
    const std::vector<double> times = expected(rate);
    for (std::size_t i = 0; i < 6; ++i) CHECK(found[2 + i] == doctest::Approx(times[i]).epsilon(0.02));
  }
  CHECK(!(lines >> line));
  const PlotScript script;
  const TemporaryFolder folder;
  const std::string results = (folder.path() / "new/results").string();
  CHECK(contains(printed({.folder = results, .rates = {7, 60}}), "TTFT"));
  for (const char* name : {"capacity.csv", "capacity.json", "capacity.svg"})
    CHECK(std::filesystem::file_size(std::filesystem::path(results) / name) > 0);
  const nlohmann::json table =
      nlohmann::json::parse(read_file(std::filesystem::path(results) / "capacity.json"));
  REQUIRE(table.size() == 2);
  const std::vector<double> times = expected(7);
  const std::string names[] = {"TTFT ms p50", "TTFT ms p95", "TTFT ms p99",
                               "TPOT ms p50", "TPOT ms p95", "TPOT ms p99"};
  for (std::size_t i = 0; i < 6; ++i) CHECK(table[0][names[i]] == doctest::Approx(times[i]));
  // Beyond the knee there is no time to draw, so one rate is left.
  const std::string plot = PlotScript::text(std::filesystem::path(results) / "capacity.svg");
  CHECK(contains(plot, axes("requests per second", "milliseconds")));
  for (int i = 0; i < 3; ++i) {
    const auto points = points_of(plot, i);
    REQUIRE(points.size() == 1);
    CHECK(points[0][0] == 7.0);
    CHECK(points[0][1] == doctest::Approx(times[static_cast<std::size_t>(i)]));
    CHECK(contains(
        plot, fmt::format("linestyle {} title '{}'", i + 1, names[i].substr(0, 4) + names[i].substr(7))));
  }
}

TEST_CASE("the run that finds the knee has at most 20,000 requests, and the others have all") {
  std::vector<std::size_t> counts;
  std::vector<double> last;
  const auto serve = [&](const std::vector<RandomRequest>& requests) {
    counts.push_back(requests.size());
    last.push_back(requests.back().arrival);
    return Waiting{.ttft = {1.0}, .seconds = static_cast<double>(requests.size()) / 50.0};
  };
  const Captured captured(stderr);
  for (const int requests : {19'999, 20'000, 20'001}) {
    CHECK(sweep({.rates = {7}}, {.requests = requests}, 512, serve) == doctest::Approx(50.0));
  }
  CHECK(counts == std::vector<std::size_t>{19'999, 19'999, 20'000, 20'000, 20'000, 20'001});
  for (const std::size_t first : {0, 2, 4}) {
    CHECK(last[first] == 0.0);  // all arrive at once
    CHECK(last[first + 1] > 0.0);
  }
}

}  // namespace
}  // namespace staircase
