// A rotation that spreads each number over all of its head.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>

namespace staircase {

/// x = H x / √n for the Hadamard matrix H of n rows (Sylvester 1867), where n = x.size() is a power of 2. Its
/// entries are 1 and −1, and its rows are orthogonal. A second call undoes the first.
inline void rotate(std::span<float> x) {
  for (std::size_t half = 1; half < x.size(); half *= 2) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      if ((i & half) != 0) continue;
      const float a = x[i], b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
  }
  for (float& number : x) number /= std::sqrt(static_cast<float>(x.size()));
}

/// Rotates each of the heads [n, head_size].
inline void rotate_heads(std::span<float> heads, std::size_t head_size) {
  for (; !heads.empty(); heads = heads.subspan(head_size)) rotate(heads.first(head_size));
}

}  // namespace staircase
