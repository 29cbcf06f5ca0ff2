#include "common/measure/measurement.h"

#include <doctest/doctest.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "common/measure/logit_comparison.h"
#include "tests/captured.h"
#include "tests/error_message.h"
#include "tests/temporary_folder.h"

namespace staircase {
namespace {

std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

Table some_table() {
  Table table({"name", "count", "time"});
  table.add({"one", 1, 0.5});
  table.add({"a \"b\", c", 200, 12.25});
  return table;
}

TEST_CASE("a table has aligned columns, words to the left and numbers to the right") {
  CHECK(some_table().text(1) ==
        "name      count  time\n"
        "one           1   0.5\n"
        "a \"b\", c    200  12.2\n");
}

TEST_CASE("a column of numbers is aligned to the right, and one of words to the left, wherever they are") {
  Table table({"n", "word"});
  table.add({7, "a"});
  table.add({200, "b c d"});
  CHECK(table.text() ==
        "  n  word \n"
        "  7  a    \n"
        "200  b c d\n");
}

TEST_CASE("a table as CSV puts quotes where a comma or a quote needs them") {
  const TemporaryFolder folder;
  some_table().write_csv(folder.path() / "t.csv");
  CHECK(text_of(folder.path() / "t.csv") ==
        "name,count,time\r\none,1,0.500000\r\n\"a \"\"b\"\", c\",200,12.250000\r\n");
}

TEST_CASE("a field of CSV is in quotes for each sign that would end it, and for no other") {
  const TemporaryFolder folder;
  for (const std::string sign : {",", "\"", "\n", "\r", ";", " ", "\t", "'"}) {
    CAPTURE(sign);
    Table table({"text"});
    table.add({"a" + sign});
    table.write_csv(folder.path() / "t.csv");
    const bool ends = std::string_view(",\"\n\r").find(sign) != std::string_view::npos;
    const std::string field = ends ? "\"a" + sign + (sign == "\"" ? "\"\"" : "\"") : "a" + sign;
    CHECK(text_of(folder.path() / "t.csv") == "text\r\n" + field + "\r\n");
  }
}

TEST_CASE("a table as JSON is a list of objects") {
  const TemporaryFolder folder;
  some_table().write_json(folder.path() / "t.json");
  const auto json = nlohmann::json::parse(text_of(folder.path() / "t.json"));
  REQUIRE(json.size() == 2);
  CHECK(json[1]["name"] == "a \"b\", c");
  CHECK(json[1]["count"] == 200);
  CHECK(json[0]["time"] == 0.5);
}

TEST_CASE("a table that cannot be written is an error") {
  CHECK(says(error_message([] { some_table().write_csv("/nonexistent/t.csv"); }),
             "/nonexistent/t.csv cannot be written"));
}

TEST_CASE("the spread of measurements is their median and quartiles") {
  const Spread one = spread({3.0});
  CHECK(one.median == 3.0);
  CHECK(one.low == 3.0);
  const Spread five = spread({5.0, 1.0, 4.0, 2.0, 3.0});
  CHECK(five.low == 2.0);
  CHECK(five.median == 3.0);
  CHECK(five.high == 4.0);
  CHECK(spread({1.0, 2.0}).median == 1.5);
}

TEST_CASE("a quantile is at the sorted values, and on the line between two of them") {
  std::vector<double> values;
  for (int i = 0; i < 101; ++i) values.push_back((37 * i) % 101);  // 0 … 100, in no order
  for (int percent = 0; percent <= 100; ++percent) {
    CHECK(quantile(values, percent / 100.0) == doctest::Approx(percent));
  }
  CHECK(quantile({4.0, 2.0}, 0.95) == doctest::Approx(3.9));
  CHECK(quantile({5.0}, 0.99) == 5.0);
  // Ten of a thousand values are above the 99th percentile, whatever they are.
  values.clear();
  for (int i = 0; i < 1000; ++i) values.push_back(std::pow(1.01, (7 * i) % 1000));
  const double p99 = quantile(values, 0.99);
  CHECK(std::ranges::count_if(values, [&](double value) { return value > p99; }) == 10);
}

TEST_CASE("a speed-up compares runs of the same turn, so a turn in which all are slow changes nothing") {
  const Spread slow_turn = speedup({40.0, 4.0, 40.0}, {20.0, 2.0, 20.0});
  CHECK(slow_turn.low == 2.0);
  CHECK(slow_turn.median == 2.0);
  CHECK(slow_turn.high == 2.0);
  // The medians of both are 20.
  CHECK(speedup({10.0, 20.0, 40.0}, {20.0, 40.0, 10.0}).median == 0.5);
}

TEST_CASE("all ways take turns, and the turn that warms up does not count") {
  std::vector<std::size_t> ways;
  std::vector<bool> warm;
  const auto rates = take_turns(3, 2, [&](std::size_t way, bool warms_up) {
    ways.push_back(way);
    warm.push_back(warms_up);
    return 10.0 * static_cast<double>(way) + static_cast<double>(ways.size());
  });
  CHECK(ways == std::vector<std::size_t>{0, 1, 2, 0, 1, 2, 0, 1, 2});
  CHECK(warm == std::vector<bool>{true, true, true, false, false, false, false, false, false});
  CHECK(rates == std::vector<std::vector<double>>{{4.0, 7.0}, {15.0, 18.0}, {26.0, 29.0}});
}

/// Redirects standard error to a terminal until the end of the scope.
class Terminal {
 public:
  Terminal() {
    grantpt(main_);
    unlockpt(main_);
    const int side = open(ptsname(main_), O_RDWR | O_NOCTTY | O_CLOEXEC);
    REQUIRE(side >= 0);
    dup2(side, STDERR_FILENO);
    close(side);
  }
  ~Terminal() { end(); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  /// All that has been written; standard error is as before.
  std::string end() {
    if (saved_ < 0) return {};
    std::fflush(stderr);
    dup2(saved_, STDERR_FILENO);
    close(std::exchange(saved_, -1));
    // The system hands over what was written in pieces, and ends with an error once no program has the other
    // side.
    std::string text, piece(1000, '\0');
    for (ssize_t size; (size = read(main_, piece.data(), piece.size())) > 0;)
      text.append(piece, 0, static_cast<std::size_t>(size));
    close(main_);
    return text;
  }

 private:
  int main_ = posix_openpt(O_RDWR | O_NOCTTY);
  int saved_ = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
};

TEST_CASE("on a terminal a bar shows which turn runs and how many are done, and leaves nothing") {
  Terminal terminal;
  take_turns(2, 2, [](std::size_t, bool) { return 1.0; });
  const std::string shown = terminal.end();
  std::string expected;
  const char* const turns[] = {"warming up",  "warming up",  "turn 1 of 2",
                               "turn 1 of 2", "turn 2 of 2", "turn 2 of 2"};
  for (int done = 0; done < 6; ++done) {  // a sixth of 30 for each that is done
    expected += fmt::format("\r\033[K[{:<30}] {}/6 {}", std::string(static_cast<std::size_t>(5 * done), '#'),
                            done + 1, turns[done]);
  }
  CHECK(shown == expected + "\r\033[K");
}

TEST_CASE("the largest difference of two logits is printed, whichever is larger") {
  const auto said = [](const std::vector<float>& plain, const std::vector<float>& engine) {
    const Captured captured(stderr);
    compare_logits(plain, engine);
    return captured.text();
  };
  CHECK(said({1, -2, 3}, {1.25f, -2, 2.5f}) == "3 logits differ by at most 5.0e-01\n");
  CHECK(said({1, -2}, {1.25f, -2.125f}) == "2 logits differ by at most 2.5e-01\n");
  CHECK(said({1}, {1}) == "1 logits differ by at most 0.0e+00\n");
}

TEST_CASE(
    "of three runs of an engine the shortest counts, and each part has its share of the plain loops' time") {
  using std::chrono::milliseconds;
  PartTimes times;
  int runs = 0;
  const std::vector<float> logits{1, 2};
  std::string said;
  {
    const Captured captured(stderr);
    compare_logits(
        [&] {
          const auto watch = times.of("MLP");
          std::this_thread::sleep_for(milliseconds(20));
          return logits;
        },
        [&] {
          std::this_thread::sleep_for(milliseconds(runs++ == 1 ? 1 : 100));
          return std::span<const float>(logits);
        },
        times);
    said = captured.text();
  }
  CHECK(runs == 3);
  CHECK(begins_with(said, "2 logits differ by at most 0.0e+00\nplain loops "));
  double plain = 0.0, engine = 0.0, ratio = 0.0;
  REQUIRE(std::sscanf(said.c_str() + said.find("plain loops"),
                      "plain loops %lf ms, the engine %lf ms: %lf times as fast", &plain, &engine,
                      &ratio) == 3);
  CHECK(plain >= 20.0);
  CHECK(engine >= 1.0);
  CHECK(engine < 80.0);
  CHECK(std::abs(ratio - plain / engine) < 0.5 + 0.02 * ratio);
  CHECK(ends_with(said, " 100 %  MLP\n"));
}

TEST_CASE("results are written to their folder as a table in two formats and a plot") {
  const TemporaryFolder folder;
  const Plot plot{"speed", "x", "y", {{"line", {{0.0, 1.0}, {1.0, 2.0}}}}};
  const bool has_gnuplot = std::system("command -v gnuplot >/dev/null") == 0;
  const std::string error = error_message([&] { write_results(folder.path(), "fast", some_table(), plot); });
  CHECK((error == "") == has_gnuplot);
  CHECK(begins_with(text_of(folder.path() / "fast.csv"), "name,count,time"));
  CHECK(nlohmann::json::parse(text_of(folder.path() / "fast.json")).size() == 2);
  if (has_gnuplot) CHECK(contains(text_of(folder.path() / "fast.svg"), ">line<"));
}

}  // namespace
}  // namespace staircase
