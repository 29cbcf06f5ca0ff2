// Vectors of this processor, from Highway: the widest that the compiler may use, up to 16 floats.
#pragma once

#include <hwy/highway.h>

#include "kernels/rungs/cpu/panels.h"

namespace staircase::rungs {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, 16>;
using Vector = hn::Vec<Floats>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(Floats()));
/// The vectors of one row of a panel.
constexpr int kVectors = static_cast<int>(kPanel) / kLanes;

/// Stores the first `count` of 64 sums.
inline void store(const Vector* sums, std::int64_t count, float* y) {
  HWY_ALIGN float all[kPanel];
  for (int v = 0; v < kVectors; ++v) hn::Store(sums[v], Floats(), all + v * kLanes);
  std::copy_n(all, count, y);
}

}  // namespace staircase::rungs
