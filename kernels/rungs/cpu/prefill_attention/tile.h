// Six rows times a panel, of rung 5 and those above it: the tile of rung 5 of the matrix product.
#pragma once

#include "kernels/rungs/cpu/simd.h"

namespace staircase::rungs::prefill_attention {

constexpr std::int64_t kRows = 6;

/// result [6, 64] = rows · panel, or += with kAdds. Each of the six rows has `depth` numbers, and the panel
/// is [depth, 64]. Rows of the result are `stride` numbers apart.
template <bool kAdds>
void multiply_tile(const float* const* rows, const float* panel, std::int64_t depth, float* result,
                   std::int64_t stride) {
  constexpr int kColumns =
      kLanes == 16 ? 4 : 2;  // vectors in a row of the tile: the sums of six rows fit into registers
  const Floats d;
  for (std::int64_t c = 0; c < kPanel; c += kColumns * kLanes) {
    Vector sums[kRows][kColumns];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kColumns; ++v)
        sums[r][v] = kAdds ? hn::Load(d, result + r * stride + c + v * kLanes) : hn::Zero(d);
    }
    for (std::int64_t i = 0; i < depth; ++i) {
      Vector numbers[kColumns];
      for (int v = 0; v < kColumns; ++v) numbers[v] = hn::Load(d, panel + i * kPanel + c + v * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const Vector own = hn::Set(d, rows[r][i]);
        for (int v = 0; v < kColumns; ++v) sums[r][v] = hn::MulAdd(own, numbers[v], sums[r][v]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kColumns; ++v) hn::Store(sums[r][v], d, result + r * stride + c + v * kLanes);
    }
  }
}

}  // namespace staircase::rungs::prefill_attention
