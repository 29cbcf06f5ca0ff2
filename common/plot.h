// Plots of measurements as SVG files. gnuplot draws them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace staircase {

struct PlotPoint {
  double x = 0.0;
  double y = 0.0;
  double low = 0.0, high = 0.0;  ///< the ends of the error bar; none where they are equal
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

/// Writes `plot` to `file`, an SVG. Throws Error when gnuplot is not installed, when the file cannot be
/// written, and when there is no point to plot.
void write_svg(const std::filesystem::path& file, const Plot& plot);

}  // namespace staircase
