// Draws measurements with gnuplot, as SVG files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace staircase {

struct PlotPoint {
  double x = 0.0;
  double y = 0.0;
  double low = 0.0, high = 0.0;  ///< the ends of the error bar; no bar if they are equal
};

/// One line of a plot.
struct PlotSeries {
  std::string name;
  std::vector<PlotPoint> points;
};

struct Plot {
  std::string title, x_label, y_label;
  std::vector<PlotSeries> series = {};
};

/// A bar of a timeline: from one time to another, on a lane (from 1), in the colour of its kind.
struct TimelineBar {
  int lane = 1;
  double from = 0.0, to = 0.0;
  std::size_t kind = 0;
};

struct TimelinePanel {
  std::string title;
  std::vector<TimelineBar> bars;
};

/// Panels one above the other, with the same time axis.
struct Timeline {
  std::string x_label, y_label;
  std::vector<std::string> kinds;  ///< the name of each kind of bar
  std::vector<TimelinePanel> panels = {};
};

/// Throws Error if `file` cannot be written. Changes nothing, so a program can check this before a long run.
void check_writable(const std::filesystem::path& file);

/// Writes `plot` to `file`, an SVG. Throws Error if gnuplot is not installed, if the file cannot be written,
/// and if there is nothing to plot.
void write_svg(const std::filesystem::path& file, const Plot& plot);
void write_svg(const std::filesystem::path& file, const Timeline& timeline);

}  // namespace staircase
