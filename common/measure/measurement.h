// Results of a measurement: a table for people, the same as CSV and JSON, their variation, and the progress.
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

  /// One cell per column.
  void add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }

  /// Aligned columns, numbers with `digits` decimals.
  std::string text(int digits = 2) const;

  /// Throw Error if the file cannot be written. CSV follows RFC 4180; JSON is a list of objects.
  void write_csv(const std::filesystem::path& file) const;
  void write_json(const std::filesystem::path& file) const;

 private:
  std::vector<std::string> columns_;
  std::vector<std::vector<Cell>> rows_;
};

/// Creates the folder for the results unless it exists. Throws Error if that is impossible.
void make_folder(const std::filesystem::path& folder);

/// Prints a table and writes it into that folder, as `name`.csv and .json, with the plot, `name`.svg. Throws
/// Error if a file cannot be written, or if there is no gnuplot to draw with.
void write_results(const std::filesystem::path& folder, const std::string& name, const Table& table,
                   const Plot& plot);

/// The median of several measurements, and the quartiles below and above it.
struct Spread {
  double median = 0.0, low = 0.0, high = 0.0;
};

/// `values` must not be empty.
Spread spread(const std::vector<double>& values);

/// The speed-up over the baseline, from pairs of runs of the same turn, because a slow phase of the machine
/// slows both. `rates` and `baselines` have the same number of runs, at least one.
Spread speedup(const std::vector<double>& rates, const std::vector<double>& baselines);

/// The numbers c ≥ 0, one for each column, for which Σ (values[i] − rows[i] · c)² is least (Lawson and Hanson
/// 1974, chapter 23; here one number after another, Franc et al. 2005). `rows` must not be empty, and all
/// have the same number of columns.
std::vector<double> non_negative_least_squares(const std::vector<std::vector<double>>& rows,
                                               const std::vector<double>& values);

/// Measures several ways of doing the same thing. They take turns, so a machine that slows down slows all of
/// them. The first turn warms up and does not count: it finds cold caches and memory that was never touched.
/// `measure(way, warms_up)` runs one of them, numbered from 0, and returns its rate, say in tokens per
/// second. Returns the rates of each way, one per turn.
std::vector<std::vector<double>> take_turns(
    std::size_t ways, int turns, const std::function<double(std::size_t way, bool warms_up)>& measure);

/// The progress of a long measurement, on one line of a terminal; nothing elsewhere.
class Progress {
 public:
  explicit Progress(int steps) : steps_(steps) {}
  ~Progress();

  /// This step begins; the one before it, if any, is done.
  void next(const std::string& what);

 private:
  int steps_, done_ = 0;
};

}  // namespace staircase
