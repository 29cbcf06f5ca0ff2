// How far rounding moves weights.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "common/measure/measurement.h"
#include "common/model/model.h"

namespace staircase {

/// The root mean square of the differences, relative to that of the values: √(Σ (r − v)² / Σ v²). 0 if
/// nothing differs. Both have the same length.
double relative_error(std::span<const float> values, std::span<const float> rounded);

/// The weights [outputs, inputs] after rounding, if `size` neighbouring inputs of an output share a scale;
/// the last group of an output may be shorter.
using Rounding =
    std::function<std::vector<float>(std::span<const float> weights, std::size_t inputs, std::size_t size)>;

/// A line for each weight matrix of a model: the relative errors, in percent. There is a scale for each 32,
/// 64 and 128 inputs of an output, one for each output, and a single one for the matrix.
Table rounding_errors(const Model& model, const Rounding& round);

}  // namespace staircase
