#include "common/measure/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>

#include "common/base/error.h"
#include "common/base/message.h"

namespace staircase {
namespace {

std::string replaced(const std::string& text, char from, const std::string& to) {
  std::string result;
  for (const char c : text) result += c == from ? to : std::string(1, c);
  return result;
}

/// A string for gnuplot. Between single quotes, only another single quote has a meaning.
std::string quoted(const std::string& text) {
  return fmt::format("'{}'", replaced(replaced(text, '\'', "’"), '\n', " "));
}

// Colours that colour-blind readers can tell apart (Okabe and Ito 2008). Further series repeat the colours
// with dashed lines.
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                    "#e69f00", "#56b4e9", "#000000"};

/// The program that gnuplot runs: first the data, one block per series, then the drawing commands.
std::string script(const Plot& plot) {
  std::string text, curves;
  double least = std::numeric_limits<double>::infinity(), most = -least;  // of all x
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    text += fmt::format("$series{} << END_OF_SERIES\n", i);
    bool bars = false;
    for (const PlotPoint& point : plot.series[i].points) {
      text += fmt::format("{} {} {} {}\n", point.x, point.y, point.low, point.high);
      bars = bars || point.low < point.high;
      least = std::min(least, point.x);
      most = std::max(most, point.x);
    }
    text += "END_OF_SERIES\n";
    const bool few = plot.series[i].points.size() <= 30;  // more markers would hide the line
    curves += fmt::format("{}$series{} using 1:2 with {} linestyle {} title {}", i == 0 ? "" : ", ", i,
                          few ? "linespoints" : "lines", i + 1, quoted(plot.series[i].name));
    if (bars)
      curves += fmt::format(", $series{} using 1:2:3:4 with yerrorbars linestyle {} notitle", i, i + 1);
  }
  text += fmt::format(
      "set terminal svg size 720,440 font 'sans-serif,13' background '#ffffff' noenhanced\n"
      "set title {}\nset xlabel {}\nset ylabel {}\n",
      quoted(plot.title), quoted(plot.x_label), quoted(plot.y_label));
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    text += fmt::format(
        "set linetype {} linewidth 1.8 dashtype {} pointtype 7 pointsize 0.5 linecolor rgb '{}'\n", i + 1,
        i / std::size(kColours) + 1, kColours[i % std::size(kColours)]);
    text += fmt::format("set style line {0} linetype {0}\n", i + 1);
  }
  text +=
      "set border 3\nset tics nomirror\nset grid ytics linecolor rgb '#dddddd'\nset yrange [0:*]\n"
      "set offsets 0, 0, graph 0.05, 0\nset key outside right top\n";
  // For a single x, gnuplot would invent a range and print a warning.
  if (least == most) {
    text += fmt::format("set xrange [{}:{}]\nset xtics ('{}' {})\n", least - 1, least + 1, least, least);
  }
  return text + "plot " + curves + "\n";
}

/// The program for a timeline, with a block of data for each kind of bar in each panel.
std::string script(const Timeline& timeline) {
  std::string data, panels;
  double end = 0.0;
  int lanes = 1;
  for (const TimelinePanel& panel : timeline.panels) {
    for (const TimelineBar& bar : panel.bars) {
      end = std::max(end, bar.to);
      lanes = std::max(lanes, bar.lane);
    }
  }
  for (std::size_t p = 0; p < timeline.panels.size(); ++p) {
    std::string bars;
    for (std::size_t kind = 0; kind < timeline.kinds.size(); ++kind) {
      std::string block;
      for (const TimelineBar& bar : timeline.panels[p].bars) {
        if (bar.kind != kind) continue;
        block += fmt::format("{} {} {} {} {} {}\n", (bar.from + bar.to) / 2, bar.lane, bar.from, bar.to,
                             bar.lane - 0.4, bar.lane + 0.4);
      }
      if (block.empty()) continue;
      data += fmt::format("$bars{}_{} << END_OF_BARS\n{}END_OF_BARS\n", p, kind, block);
      bars += fmt::format(
          "{}$bars{}_{} using 1:2:3:4:5:6 with boxxyerror fillstyle solid 0.85 border rgb '#ffffff' "
          "linecolor rgb '{}' title {}",
          bars.empty() ? "plot " : ", ", p, kind, kColours[kind % std::size(kColours)],
          quoted(timeline.kinds[kind]));
    }
    panels += fmt::format("set title {}\n{}\n", quoted(timeline.panels[p].title), bars);
  }
  return data + fmt::format(
                    "set terminal svg size 960,{} font 'sans-serif,13' background '#ffffff' noenhanced\n"
                    "set xlabel {}\nset ylabel {}\nset xrange [0:{}]\nset yrange [{}:0.4]\nset ytics 1\n"
                    "set border 3\nset tics nomirror\nset key outside right top\n"
                    "set multiplot layout {},1\n{}unset multiplot\n",
                    80 + 220 * timeline.panels.size(), quoted(timeline.x_label), quoted(timeline.y_label),
                    end > 0.0 ? end : 1.0, lanes + 0.6, timeline.panels.size(), panels);
}

/// Runs gnuplot with the program `text`.
void draw(const std::filesystem::path& file, const std::string& text) {
#ifdef __EMSCRIPTEN__
  // A page cannot start gnuplot, and the printed results are complete without a plot.
  (void)text;
  warn("{} is not drawn: a program in a browser cannot start gnuplot", file.string());
#else
  if (std::system("command -v gnuplot >/dev/null") != 0) {
    throw Error("{} needs gnuplot, which is not installed", file.string());
  }
  check_writable(file);

  const std::string command = fmt::format("gnuplot >'{}'", replaced(file.string(), '\'', "'\\''"));
  std::FILE* const gnuplot = popen(command.c_str(), "w");
  if (gnuplot == nullptr) throw Error("gnuplot, which draws the plots, cannot be started");
  std::fwrite(text.data(), 1, text.size(), gnuplot);
  const int status = pclose(gnuplot);
  if (status != 0) throw Error("gnuplot failed to draw {}", file.string());
#endif
}

}  // namespace

void check_writable(const std::filesystem::path& file) {
  std::error_code ignored;
  const bool exists = std::filesystem::exists(std::filesystem::symlink_status(file, ignored));
  if (!std::ofstream(file, std::ios::app)) throw Error("{} cannot be written", file.string());
  if (!exists) std::filesystem::remove(file, ignored);
}

void write_svg(const std::filesystem::path& file, const Plot& plot) {
  std::size_t points = 0;
  for (const PlotSeries& series : plot.series) points += series.points.size();
  if (points == 0) throw Error("{}: there is nothing to plot", file.string());
  draw(file, script(plot));
}

void write_svg(const std::filesystem::path& file, const Timeline& timeline) {
  for (const TimelinePanel& panel : timeline.panels) {
    if (panel.bars.empty()) throw Error("{}: there is nothing to plot", file.string());
  }
  draw(file, script(timeline));
}

}  // namespace staircase
