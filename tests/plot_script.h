// What gnuplot gets to draw, also where it is not installed.
#pragma once

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "tests/temporary_folder.h"

namespace staircase {

/// While it lives, this program and those that it runs find a gnuplot that writes the script into the file
/// instead of a picture.
class PlotScript {
 public:
  PlotScript() {
    const std::filesystem::path echo = folder_.write("gnuplot", "#!/bin/sh\nexec cat\n");
    std::filesystem::permissions(echo, std::filesystem::perms::owner_all);
    setenv("PATH", (folder_.path().string() + ":" + path_).c_str(), 1);
  }
  ~PlotScript() { setenv("PATH", path_.c_str(), 1); }
  PlotScript(const PlotScript&) = delete;
  PlotScript& operator=(const PlotScript&) = delete;

  /// A file for a plot, besides others in the same folder.
  std::filesystem::path file() const { return folder_.path() / "plot.svg"; }

  /// The script in a file that was written meanwhile.
  static std::string text(const std::filesystem::path& file) {
    std::ifstream stream(file);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

 private:
  std::string path_ = std::getenv("PATH");
  TemporaryFolder folder_;
};

/// The lines of a script that name its axes.
inline std::string axes(const std::string& x, const std::string& y) {
  return "set xlabel '" + x + "'\nset ylabel '" + y + "'\n";
}

/// x, y, and the ends of the error bar of each point of a series.
inline std::vector<std::array<double, 4>> points_of(const std::string& script, int series) {
  const std::string begin = "$series" + std::to_string(series) + " << END_OF_SERIES\n";
  const std::size_t first = script.find(begin);
  if (first == script.npos) return {};
  const std::size_t from = first + begin.size();
  std::istringstream block(script.substr(from, script.find("END_OF_SERIES\n", from) - from));
  std::vector<std::array<double, 4>> points;
  for (std::array<double, 4> point; block >> point[0] >> point[1] >> point[2] >> point[3];)
    points.push_back(point);
  return points;
}

}  // namespace staircase
