#include "common/measure/plot.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "tests/captured.h"
#include "tests/error_message.h"
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

/// The program that gnuplot would run to draw a plot or a timeline.
template <typename Drawing>
std::string program_of(const Drawing& drawing) {
  const TemporaryFolder folder;
  const std::filesystem::path echo = folder.write("gnuplot", "#!/bin/sh\nexec cat\n"),
                              file = folder.path() / "out.svg";
  std::filesystem::permissions(echo, std::filesystem::perms::owner_all);
  const std::string path = std::getenv("PATH");
  setenv("PATH", (folder.path().string() + ":" + path).c_str(), 1);
  const std::string message = error_message([&] { write_svg(file, drawing); });
  setenv("PATH", path.c_str(), 1);
  CHECK(message == "");
  return text_of(file);
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
