#include "common/measure/measurement.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

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
