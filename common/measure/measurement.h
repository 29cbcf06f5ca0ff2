// The results of a measurement as a table, as CSV and as JSON; how much they vary; and a progress bar.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "common/measure/plot.h"
#include "common/measure/quantile.h"

namespace staircase {

class Table {
 public:
  using Cell = std::variant<std::string, int, double>;

  explicit Table(std::vector<std::string> columns) : columns_(std::move(columns)) {}

  /// Adds a row with one cell per column.
  void add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }

  /// The table with aligned columns and `digits` decimals.
  std::string text(int digits = 2) const;

  /// Both throw Error if the file cannot be written. CSV follows RFC 4180; JSON is a list of objects.
  void write_csv(const std::filesystem::path& file) const;
  void write_json(const std::filesystem::path& file) const;

 private:
  std::vector<std::string> columns_;
  std::vector<std::vector<Cell>> rows_;
};

/// Creates the folder for the results unless it exists. Throws Error if it cannot be created.
void make_folder(const std::filesystem::path& folder);

/// Prints a table and writes it into `folder` as `name`.csv and `name`.json, with the plot as `name`.svg.
/// Throws Error if a file cannot be written, or if gnuplot is not installed.
void write_results(const std::filesystem::path& folder, const std::string& name, const Table& table,
                   const Plot& plot);

/// The median of several measurements, and the quartiles below and above it.
struct Spread {
  double median = 0.0, low = 0.0, high = 0.0;
};

/// `values` must not be empty.
Spread spread(const std::vector<double>& values);

/// The speed-up over the baseline, computed within each turn so that slow phases of the machine cancel out.
/// `rates` and `baselines` have the same number of runs, at least one.
Spread speedup(const std::vector<double>& rates, const std::vector<double>& baselines);

/// Returns the numbers c ≥ 0, one per column, that minimize Σ (values[i] − rows[i] · c)² (Lawson and Hanson
/// 1974, chapter 23), by optimizing one number after another (Franc et al. 2005). `rows` must not be empty,
/// and all rows have the same number of columns.
std::vector<double> non_negative_least_squares(const std::vector<std::vector<double>>& rows,
                                               const std::vector<double>& values);

/// Measures several ways of doing the same thing. The ways take turns, so a slow phase of the machine slows
/// all of them. The first turn warms up and does not count: its caches are cold, and its memory was never
/// touched. `measure(way, warms_up)` runs one way, numbered from 0, and returns its rate, for example in
/// tokens per second. Returns the rates of each way, one per turn.
std::vector<std::vector<double>> take_turns(
    std::size_t ways, int turns, const std::function<double(std::size_t way, bool warms_up)>& measure);

/// Shows the progress of a long measurement on one line of a terminal. Prints nothing if standard error is
/// not a terminal.
class Progress {
 public:
  explicit Progress(int steps) : steps_(steps) {}
  ~Progress();

  /// The next step begins, and the one before it, if any, is done. `what` describes the new step.
  void next(const std::string& what);

 private:
  int steps_, done_ = 0;
};

}  // namespace staircase
