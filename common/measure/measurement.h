// Results of a measurement: a table for people, the same as CSV and JSON, how much they vary, and how far it
// is.
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

  /// One cell for each column.
  void add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }

  /// Aligned columns, numbers with `digits` behind the point.
  std::string text(int digits = 2) const;

  /// Throw Error when the file cannot be written. CSV as RFC 4180 has it; JSON as a list of objects.
  void write_csv(const std::filesystem::path& file) const;
  void write_json(const std::filesystem::path& file) const;

 private:
  std::vector<std::string> columns_;
  std::vector<std::vector<Cell>> rows_;
};

/// Makes the folder that results go to, unless it is there. Throws Error when that is impossible.
void make_folder(const std::filesystem::path& folder);

/// Shows a table and writes it into that folder, as `name`.csv and .json, and the plot beside it, `name`.svg.
/// Throws Error when a file cannot be written, and when there is no gnuplot to draw.
void write_results(const std::filesystem::path& folder, const std::string& name, const Table& table,
                   const Plot& plot);

/// The middle of several measurements and the quarter of them below and above it.
struct Spread {
  double median = 0.0, low = 0.0, high = 0.0;
};

/// `values` must not be empty.
Spread spread(const std::vector<double>& values);

/// How many times as fast as the baseline, from pairs of runs of the same turn: what slows the machine down
/// slows both. `rates` and `baselines` have as many runs, at least one.
Spread speedup(const std::vector<double>& rates, const std::vector<double>& baselines);

/// The numbers c ≥ 0, one for each column, for which Σ (values[i] − rows[i] · c)² is least (Lawson and Hanson
/// 1974, chapter 23; here by one number after the other, Franc et al. 2005). `rows` must not be empty, and
/// all of them have as many columns.
std::vector<double> non_negative_least_squares(const std::vector<std::vector<double>>& rows,
                                               const std::vector<double>& values);

/// Measures several ways of doing the same thing. They take turns, so that a machine that slows down slows
/// all of them. The first turn warms up and does not count: it finds cold caches, and memory that was never
/// touched. `measure(way, warms_up)` runs one of them, numbered from 0, and returns its rate, say in tokens
/// per second. Returns the rates of each way, one for each turn.
std::vector<std::vector<double>> take_turns(
    std::size_t ways, int turns, const std::function<double(std::size_t way, bool warms_up)>& measure);

/// How far a long measurement has come, on one line of a terminal; nothing elsewhere.
class Progress {
 public:
  explicit Progress(int steps) : steps_(steps) {}
  ~Progress();

  /// One step is done, and this comes next.
  void next(const std::string& what);

 private:
  int steps_, done_ = 0;
};

}  // namespace staircase
