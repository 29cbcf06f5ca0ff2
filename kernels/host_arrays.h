// Parts of matrices in host memory, in the order that products need.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device.h"

namespace staircase {

/// Returns a view of the rows first .. first + count - 1.
inline HostArray rows_of(const HostArray& array, std::int64_t first, std::int64_t count) {
  const auto row_bytes = static_cast<std::int64_t>(size_of(array.dtype)) * array.columns;
  return {static_cast<const std::byte*>(array.data) + first * row_bytes, array.dtype, count, array.columns};
}

/// Interleaves the outputs of `gate` and `up`, both [outputs, inputs], for a gated product: kGateColumns of
/// one, then kGateColumns of the other. `zeros` [inputs] pads the last group of each. The result refers to
/// the memory of all three.
inline std::vector<HostArray> in_gate_order(const HostArray& gate, const HostArray& up,
                                            std::span<const float> zeros) {
  const HostArray zero{zeros.data(), DType::kFloat32, 1, gate.columns};
  std::vector<HostArray> turns;
  for (std::int64_t first = 0; first < gate.rows; first += kGateColumns) {
    const std::int64_t count = std::min(kGateColumns, gate.rows - first);
    for (const HostArray& array : {gate, up}) {
      turns.push_back(rows_of(array, first, count));
      turns.insert(turns.end(), static_cast<std::size_t>(kGateColumns - count), zero);
    }
  }
  return turns;
}

}  // namespace staircase
