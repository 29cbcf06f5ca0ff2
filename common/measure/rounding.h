// Measures how far rounding moves weights.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "common/measure/measurement.h"
#include "common/model/model.h"

namespace staircase {

/// The root mean square of the differences, divided by the root mean square of the values: √(Σ (r − v)² / Σ
/// v²). 0 if nothing differs. `values` and `rounded` have the same length.
double relative_error(std::span<const float> values, std::span<const float> rounded);

/// Returns the weights [outputs, inputs] after rounding in groups: `size` neighbouring inputs of an output
/// share a scale. The last group of an output may be shorter.
using Rounding =
    std::function<std::vector<float>(std::span<const float> weights, std::size_t inputs, std::size_t size)>;

/// Returns one row for each weight matrix: its relative errors in percent. The five columns use a scale for
/// every 32, 64 and 128 inputs of an output, one per output, and one for the whole matrix.
Table rounding_errors(const Model& model, const Rounding& round);

}  // namespace staircase
