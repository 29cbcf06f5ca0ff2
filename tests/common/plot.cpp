#include "common/plot.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

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
  CHECK(svg.find("<svg") != std::string::npos);
  for (const char* word : {"A title", ">tokens<", ">ms<", ">one<", ">two<"})
    CHECK(svg.find(word) != std::string::npos);
}

TEST_CASE("words of a plot are words, whatever gnuplot would make of them" * doctest::skip(!has_gnuplot())) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "it's a \"plot\".svg", trap = folder.path() / "trap";
  Plot plot = kPlot;
  plot.title = "it's `touch " + trap.string() + "` 100 % a_b^{c}";
  plot.series[0].name = "'; system('touch " + trap.string() + "'); '";
  write_svg(file, plot);
  CHECK(!std::filesystem::exists(trap));
  CHECK(text_of(file).find("100 % a_b^{c}") != std::string::npos);
}

TEST_CASE("a plot that cannot be made is an error") {
  const TemporaryFolder folder;
  CHECK(error_message([&] {
          write_svg(folder.path() / "plot.svg", {"t", "x", "y", {{"none", {}}}});
        }).ends_with("plot.svg: there is nothing to plot"));
  const std::string path = std::getenv("PATH");
  setenv("PATH", folder.path().c_str(), 1);
  const std::string message = error_message([&] { write_svg(folder.path() / "plot.svg", kPlot); });
  setenv("PATH", path.c_str(), 1);
  CHECK(message.ends_with("plot.svg needs gnuplot, which is not installed"));
  if (!has_gnuplot()) return;
  CHECK(error_message([&] {
          write_svg(folder.path() / "none/plot.svg", kPlot);
        }).ends_with("none/plot.svg cannot be written"));
}

}  // namespace
}  // namespace staircase
