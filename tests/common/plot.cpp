#include "common/measure/plot.h"

#include <doctest/doctest.h>

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "tests/captured.h"
#include "tests/error_message.h"
#include "tests/plot_script.h"
#include "tests/temporary_folder.h"

namespace staircase {
namespace {

bool has_gnuplot() {
  return std::system("command -v gnuplot >/dev/null") == 0;
}

std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

const Plot kPlot{"A title", "tokens", "ms", {{"one", {{1, 2, 1.5, 2.5}, {2, 3}}}, {"two", {{1, 1}, {2, 4}}}}};

TEST_CASE("a plot is an SVG with its title, its axes and its series" * doctest::skip(!has_gnuplot())) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "plot.svg";
  write_svg(file, kPlot);
  const std::string svg = text_of(file);
  CHECK(contains(svg, "<svg"));
  for (const char* word : {"A title", ">tokens<", ">ms<", ">one<", ">two<"}) CHECK(contains(svg, word));
}

TEST_CASE("a plot with one x has its point in the middle, and gnuplot prints no warning" *
          doctest::skip(!has_gnuplot())) {
  const TemporaryFolder folder;
  const Captured captured(stderr);
  for (const double x : {400.0, 0.0, 1e9}) {
    write_svg(folder.path() / "plot.svg", {"A title", "x", "y", {{"one", {{x, 2}}}, {"two", {{x, 3}}}}});
  }
  CHECK(captured.text() == "");
  CHECK(contains(text_of(folder.path() / "plot.svg"), ">1000000000<"));
}

TEST_CASE("a line of up to 30 points has a marker at each" * doctest::skip(!has_gnuplot())) {
  const TemporaryFolder folder;
  const auto markers = [&](int points) {
    Plot plot{"A title", "x", "y", {{"one", {}}}};
    for (int i = 0; i < points; ++i) plot.series[0].points.push_back({i + 0.0, 1});
    write_svg(folder.path() / "plot.svg", plot);
    const std::string svg = text_of(folder.path() / "plot.svg");
    int count = 0;
    for (std::size_t at = svg.find("<use "); at != svg.npos; at = svg.find("<use ", at + 1)) ++count;
    return count;
  };
  const int others = markers(31);
  CHECK(markers(32) == others);
  CHECK(markers(29) == others + 30);  // with that of the key
  CHECK(markers(30) == others + 31);
}

TEST_CASE("when a plot repeats its colours, the lines are dashed" * doctest::skip(!has_gnuplot())) {
  const TemporaryFolder folder;
  const auto dashed = [&](int count) {  // with those of the grid, which are as many for any number of series
    Plot plot{"A title", "x", "y"};
    for (int i = 0; i < count; ++i) plot.series.push_back({"series", {{1, 1}, {2, 2}}});
    write_svg(folder.path() / "plot.svg", plot);
    const std::string svg = text_of(folder.path() / "plot.svg");
    int strokes = 0;
    for (std::size_t at = svg.find("stroke-dash"); at != svg.npos; at = svg.find("stroke-dash", at + 1))
      ++strokes;
    return strokes;
  };
  CHECK(dashed(7) == dashed(1));
  CHECK(dashed(8) > dashed(7));
}

TEST_CASE("words of a plot are words, even if gnuplot would interpret them" * doctest::skip(!has_gnuplot())) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "it's a \"plot\".svg", trap = folder.path() / "trap";
  Plot plot = kPlot;
  plot.title = "it's `touch " + trap.string() + "` 100 % a_b^{c}";
  plot.series[0].name = "'; system('touch " + trap.string() + "'); '";
  write_svg(file, plot);
  CHECK(!std::filesystem::exists(trap));
  CHECK(contains(text_of(file), "100 % a_b^{c}"));
}

TEST_CASE("a timeline has a bar for each stretch of time" * doctest::skip(!has_gnuplot())) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "timeline.svg";
  const auto drawn = [&](const std::vector<TimelineBar>& bars) {
    write_svg(file, Timeline{"seconds", "row", {"wait", "work"}, {{"it's `one`", bars}, {"two", bars}}});
    const std::string svg = text_of(file);
    for (const char* word : {"it’s `one`", ">two<", ">seconds<", ">row<", ">wait<"})
      CHECK(contains(svg, word));
    int polygons = 0;
    for (std::size_t at = svg.find("<polygon"); at != svg.npos; at = svg.find("<polygon", at + 1)) ++polygons;
    return polygons;
  };
  const int two = drawn({{1, 0.0, 1.0, 0}, {3, 1.0, 2.5, 1}});
  CHECK(drawn({{1, 0.0, 1.0, 0}, {3, 1.0, 2.5, 1}, {3, 2.5, 3.0, 1}}) == two + 2);  // one a panel
  CHECK(drawn({{1, 0.0, 1.0, 0}}) > 0);                                             // a kind without bars
}

/// What gnuplot gets to draw a plot or a timeline.
template <typename Drawing>
std::string program_of(const Drawing& drawing) {
  const PlotScript script;
  CHECK(error_message([&] { write_svg(script.file(), drawing); }) == "");
  return PlotScript::text(script.file());
}

TEST_CASE("gnuplot gets each point, an error bar where its ends differ, and a title of one line") {
  Plot plot = kPlot;
  plot.title = "it's\nlong";
  const std::string program = program_of(plot);
  CHECK(contains(program, "$series0 << END_OF_SERIES\n1 2 1.5 2.5\n2 3 0 0\nEND_OF_SERIES\n"));
  CHECK(contains(program, "$series1 << END_OF_SERIES\n1 1 0 0\n2 4 0 0\nEND_OF_SERIES\n"));
  CHECK(contains(program, "set title 'it’s long'\n"));
  CHECK(contains(program, "$series0 using 1:2:3:4 with yerrorbars linestyle 1 notitle"));
  CHECK_FALSE(contains(program, "$series1 using 1:2:3:4"));
  CHECK(contains(program, axes("tokens", "ms")));
}

TEST_CASE("the first seven series, and kinds of bars, have the colours of Okabe and Ito; then they repeat") {
  // Okabe and Ito (2008), figure 16: blue, vermilion, bluish green, reddish purple, orange, sky blue, black.
  const std::string expected[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                  "#e69f00", "#56b4e9", "#000000"};
  Plot plot{"A title", "x", "y"};
  Timeline timeline{"seconds", "row", {}, {{"one", {}}}};
  for (std::size_t i = 0; i < 15; ++i) {
    plot.series.push_back({fmt::format("series {}", i), {{1, 1}, {2, 2}}});
    timeline.kinds.push_back(fmt::format("kind {}", i));
    timeline.panels[0].bars.push_back({1, 1.0 * static_cast<double>(i), 1.0 + static_cast<double>(i), i});
  }
  const std::string lines = program_of(plot), bars = program_of(timeline);
  for (std::size_t i = 0; i < 15; ++i) {
    CHECK(contains(lines, fmt::format("set linetype {} linewidth 1.8 dashtype {} pointtype 7 pointsize 0.5 "
                                      "linecolor rgb '{}'\n",
                                      i + 1, i / 7 + 1, expected[i % 7])));
    CHECK(contains(bars, fmt::format("linecolor rgb '{}' title 'kind {}'", expected[i % 7], i)));
  }
}

TEST_CASE(
    "gnuplot gets each bar of a timeline on its lane, in the colour of its kind, and room for all lanes") {
  const Timeline timeline{"seconds",
                          "row",
                          {"wait", "work"},
                          {{"one", {{1, 0.5, 1.0, 0}, {3, 1.0, 2.5, 1}}}, {"two", {{2, 0.0, 2.0, 1}}}}};
  const std::string program = program_of(timeline);
  // x, y, and the ends in both directions.
  CHECK(contains(program, "$bars0_0 << END_OF_BARS\n0.75 1 0.5 1 0.6 1.4\nEND_OF_BARS\n"));
  CHECK(contains(program, "$bars0_1 << END_OF_BARS\n1.75 3 1 2.5 2.6 3.4\nEND_OF_BARS\n"));
  CHECK(contains(program, "$bars1_1 << END_OF_BARS\n1 2 0 2 1.6 2.4\nEND_OF_BARS\n"));
  CHECK(contains(program, "set terminal svg size 960,520 "));
  CHECK(contains(program, axes("seconds", "row")));
  CHECK(contains(program, "set xrange [0:2.5]\nset yrange [3.6:0.4]\n"));
  CHECK(contains(program, "linecolor rgb '#0072b2' title 'wait', $bars0_1 "));
  CHECK(contains(program, "linecolor rgb '#d55e00' title 'work'\n"));
  // Without any time, gnuplot still needs a range.
  CHECK(contains(program_of(Timeline{"x", "y", {"kind"}, {{"one", {{1, 0.0, 0.0, 0}}}}}),
                 "set xrange [0:1]\n"));
}

TEST_CASE("whether a file can be written is found out without changing anything") {
  const TemporaryFolder folder;
  const std::filesystem::path old = folder.write("old.svg", "an older plot"),
                              link = folder.path() / "link.svg";
  std::filesystem::create_symlink("target.svg", link);
  for (const std::filesystem::path& file : {old, folder.path() / "new.svg", link}) check_writable(file);
  CHECK(text_of(old) == "an older plot");
  CHECK(!std::filesystem::exists(folder.path() / "new.svg"));
  CHECK(std::filesystem::is_symlink(link));
  for (const std::filesystem::path& file : {folder.path(), folder.path() / "none/plot.svg", old / "plot.svg"})
    CHECK(error_message([&] { check_writable(file); }) == file.string() + " cannot be written");
}

TEST_CASE("a plot that cannot be made is an error") {
  const TemporaryFolder folder;
  CHECK(ends_with(error_message([&] {
                    write_svg(folder.path() / "plot.svg", {"t", "x", "y", {{"none", {}}}});
                  }),
                  "plot.svg: there is nothing to plot"));
  CHECK(ends_with(error_message([&] {
                    write_svg(folder.path() / "t.svg", Timeline{"x", "y", {"kind"}, {{"none", {}}}});
                  }),
                  "t.svg: there is nothing to plot"));
  const std::string path = std::getenv("PATH");
  setenv("PATH", folder.path().c_str(), 1);
  const std::string message = error_message([&] { write_svg(folder.path() / "plot.svg", kPlot); });
  setenv("PATH", path.c_str(), 1);
  CHECK(ends_with(message, "plot.svg needs gnuplot, which is not installed"));
  if (!has_gnuplot()) return;
  CHECK(ends_with(error_message([&] { write_svg(folder.path() / "none/plot.svg", kPlot); }),
                  "none/plot.svg cannot be written"));
}

}  // namespace
}  // namespace staircase
