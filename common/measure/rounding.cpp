#include "common/measure/rounding.h"

#include <cmath>

#include "common/model/weight_matrices.h"

namespace staircase {

double relative_error(std::span<const float> values, std::span<const float> rounded) {
  double moved = 0.0, all = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double value = values[i], difference = rounded[i] - value;
    moved += difference * difference;
    all += value * value;
  }
  return moved == 0.0 ? 0.0 : std::sqrt(moved / all);
}

Table rounding_errors(const Model& model, const Rounding& round) {
  Table table({"error in %, scale per", "32 inputs", "64", "128", "output", "matrix"});
  for_each_matrix(model, [&](const WeightMatrix& matrix) {
    const auto& [name, inputs, weights] = matrix;
    std::vector<Table::Cell> row{name};
    for (const std::size_t size : {std::size_t{32}, std::size_t{64}, std::size_t{128}, inputs}) {
      row.emplace_back(100.0 * relative_error(weights, round(weights, inputs, size)));
    }
    // For one scale per matrix, treat the matrix as a single output with all weights.
    row.emplace_back(100.0 * relative_error(weights, round(weights, weights.size(), weights.size())));
    table.add(row);
  });
  return table;
}

}  // namespace staircase
