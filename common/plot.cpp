#include "common/plot.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "common/error.h"

namespace staircase {
namespace {

std::string replaced(const std::string& text, char from, const std::string& to) {
  std::string result;
  for (const char c : text) result += c == from ? to : std::string(1, c);
  return result;
}

/// A string of gnuplot's. Between single quotes nothing but such a quote has a meaning.
std::string quoted(const std::string& text) {
  return fmt::format("'{}'", replaced(replaced(text, '\'', "’"), '\n', " "));
}

/// The program that gnuplot runs: the data first, one block a series, then how to draw it.
std::string script(const Plot& plot) {
  std::string text, curves;
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    text += fmt::format("$series{} << END_OF_SERIES\n", i);
    bool bars = false;
    for (const PlotPoint& point : plot.series[i].points) {
      text += fmt::format("{} {} {} {}\n", point.x, point.y, point.low, point.high);
      bars = bars || point.low < point.high;
    }
    text += "END_OF_SERIES\n";
    const bool few = plot.series[i].points.size() <= 30;  // more markers would only hide the line
    curves += fmt::format("{}$series{} using 1:2 with {} linestyle {} title {}", i == 0 ? "" : ", ", i,
                          few ? "linespoints" : "lines", i + 1, quoted(plot.series[i].name));
    if (bars)
      curves += fmt::format(", $series{} using 1:2:3:4 with yerrorbars linestyle {} notitle", i, i + 1);
  }
  text += fmt::format(
      "set terminal svg size 720,440 font 'sans-serif,13' background '#ffffff' noenhanced\n"
      "set title {}\nset xlabel {}\nset ylabel {}\n",
      quoted(plot.title), quoted(plot.x_label), quoted(plot.y_label));
  // Colours that stay apart for colour-blind readers (Okabe and Ito 2008).
  const char* const kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                  "#e69f00", "#56b4e9", "#000000"};
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    text += fmt::format("set linetype {} linewidth 1.8 pointtype 7 pointsize 0.5 linecolor rgb '{}'\n", i + 1,
                        kColours[i % std::size(kColours)]);
    text += fmt::format("set style line {0} linetype {0}\n", i + 1);
  }
  text +=
      "set border 3\nset tics nomirror\nset grid ytics linecolor rgb '#dddddd'\nset yrange [0:*]\n"
      "set offsets 0, 0, graph 0.05, 0\nset key outside right top\n";
  return text + "plot " + curves + "\n";
}

}  // namespace

void write_svg(const std::filesystem::path& file, const Plot& plot) {
  std::size_t points = 0;
  for (const PlotSeries& series : plot.series) points += series.points.size();
  if (points == 0) throw Error("{}: there is nothing to plot", file.string());
  if (std::system("command -v gnuplot >/dev/null") != 0) {
    throw Error("{} needs gnuplot, which is not installed", file.string());
  }
  if (!std::ofstream(file)) throw Error("{} cannot be written", file.string());

  const std::string command = fmt::format("gnuplot >'{}'", replaced(file.string(), '\'', "'\\''"));
  std::FILE* const gnuplot = popen(command.c_str(), "w");
  if (gnuplot == nullptr) throw Error("gnuplot, which draws the plots, cannot be started");
  const std::string text = script(plot);
  std::fwrite(text.data(), 1, text.size(), gnuplot);
  const int status = pclose(gnuplot);
  if (status != 0) throw Error("gnuplot failed to draw {}", file.string());
}

}  // namespace staircase
