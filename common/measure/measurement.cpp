#include "common/measure/measurement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/base/message.h"
#include "kernels/platform.h"

namespace staircase {
namespace {

std::string shown(const Table::Cell& cell, int digits) {
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  if (const auto* number = std::get_if<int>(&cell)) return std::to_string(*number);
  return fmt::format("{:.{}f}", std::get<double>(cell), digits);
}

/// A field of CSV, in quotes if it needs them (RFC 4180, section 2).
std::string field(const Table::Cell& cell) {
  const auto* const text = std::get_if<std::string>(&cell);
  if (text == nullptr) return shown(cell, 6);
  if (text->find_first_of(",\"\n\r") == std::string::npos) return *text;
  std::string doubled;
  for (const char c : *text) doubled.append(c == '"' ? 2 : 1, c);
  return fmt::format("\"{}\"", doubled);
}

void write(const std::filesystem::path& file, const std::string& text) {
  std::ofstream stream(file, std::ios::binary);
  stream << text;
  stream.close();
  if (!stream) throw Error("{} cannot be written", file.string());
}

}  // namespace

std::string Table::text(int digits) const {
  std::vector<std::vector<std::string>> lines{columns_};
  for (const auto& row : rows_) {
    auto& line = lines.emplace_back();
    for (const Cell& cell : row) line.push_back(shown(cell, digits));
  }
  std::vector<std::size_t> widths(columns_.size());
  for (const auto& line : lines) {
    for (std::size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], line[c].size());
  }
  std::string text;
  for (std::size_t l = 0; l < lines.size(); ++l) {
    for (std::size_t c = 0; c < lines[l].size(); ++c) {
      const bool number = !rows_.empty() && !std::holds_alternative<std::string>(rows_[0][c]);
      text += number ? fmt::format("{:>{}}", lines[l][c], widths[c])
                     : fmt::format("{:<{}}", lines[l][c], widths[c]);
      text += c + 1 < lines[l].size() ? "  " : "\n";
    }
  }
  return text;
}

void Table::write_csv(const std::filesystem::path& file) const {
  std::string text;
  const auto add = [&](const auto& cells) {
    for (std::size_t c = 0; c < cells.size(); ++c)
      text += fmt::format("{}{}", c == 0 ? "" : ",", field(cells[c]));
    text += "\r\n";
  };
  add(columns_);
  for (const auto& row : rows_) add(row);
  write(file, text);
}

void Table::write_json(const std::filesystem::path& file) const {
  auto list = nlohmann::ordered_json::array();
  for (const auto& row : rows_) {
    nlohmann::ordered_json object;
    for (std::size_t c = 0; c < row.size(); ++c) {
      std::visit([&](const auto& value) { object[columns_[c]] = value; }, row[c]);
    }
    list.push_back(std::move(object));
  }
  write(file, list.dump(2) + "\n");
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw Error("the folder {} cannot be made: {}", folder.string(), error.message());
}

void write_results(const std::filesystem::path& folder, const std::string& name, const Table& table,
                   const Plot& plot) {
  say(table.text());
  table.write_csv(folder / (name + ".csv"));
  table.write_json(folder / (name + ".json"));
  write_svg(folder / (name + ".svg"), plot);
}

Spread spread(const std::vector<double>& values) {
  return {quantile(values, 0.5), quantile(values, 0.25), quantile(values, 0.75)};
}

Spread speedup(const std::vector<double>& rates, const std::vector<double>& baselines) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < rates.size(); ++i) ratios.push_back(rates[i] / baselines[i]);
  return spread(ratios);
}

std::vector<double> non_negative_least_squares(const std::vector<std::vector<double>>& rows,
                                               const std::vector<double>& values) {
  const std::size_t columns = rows[0].size();
  std::vector<std::vector<double>> products(columns, std::vector<double>(columns));  // of every two columns
  std::vector<double> slope(columns), result(columns);  // half the derivative of the sum with respect to each
                                                        // number
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t a = 0; a < columns; ++a) {
      slope[a] -= rows[i][a] * values[i];
      for (std::size_t b = 0; b < columns; ++b) products[a][b] += rows[i][a] * rows[i][b];
    }
  }
  // Nearly equal columns need many rounds, but a round is cheap.
  for (int round = 0; round < 200'000; ++round) {
    for (std::size_t a = 0; a < columns; ++a) {
      if (products[a][a] == 0.0) continue;
      const double step = std::max(-result[a], -slope[a] / products[a][a]);
      result[a] += step;
      for (std::size_t b = 0; b < columns; ++b) slope[b] += step * products[a][b];
    }
  }
  return result;
}

std::vector<std::vector<double>> take_turns(
    std::size_t ways, int turns, const std::function<double(std::size_t way, bool warms_up)>& measure) {
  std::vector<std::vector<double>> rates(ways);
  Progress progress(static_cast<int>(ways) * (turns + 1));
  for (int turn = 0; turn <= turns; ++turn) {
    for (std::size_t way = 0; way < ways; ++way) {
      progress.next(turn == 0 ? "warming up" : fmt::format("turn {} of {}", turn, turns));
      const double rate = measure(way, turn == 0);
      if (turn > 0) rates[way].push_back(rate);
    }
  }
  return rates;
}

void Progress::next(const std::string& what) {
  ++done_;
  if (platform::is_terminal(stderr)) {
    fmt::print(stderr, "\r\033[K[{:<30}] {}/{} {}",
               std::string(static_cast<std::size_t>(30 * (done_ - 1) / steps_), '#'), done_, steps_, what);
    std::fflush(stderr);
  }
}

Progress::~Progress() {
  if (platform::is_terminal(stderr) && done_ > 0) std::fputs("\r\033[K", stderr);
}

}  // namespace staircase
