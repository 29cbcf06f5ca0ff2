// The rotation of a head before it is rounded to 4 bits (KeysValues in device.h).
#pragma once

#include <cmath>
#include <cstdint>

namespace staircase {

/// x = H x / √n for the Hadamard matrix H of n rows (Sylvester 1867), whose entries are 1 and -1 and whose
/// rows are orthogonal. n is the largest power of 2 that divides head_size. It equals head_size in most
/// models; otherwise each n neighbours of x [head_size] are rotated on their own. A second call undoes the
/// first.
inline void rotate_head(float* x, std::int64_t head_size) {
  const std::int64_t n = head_size & -head_size;
  for (std::int64_t half = 1; half < n; half *= 2) {
    for (std::int64_t first = 0; first < head_size; first += 2 * half) {
      for (std::int64_t i = first; i < first + half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
  const float factor = 1.0f / std::sqrt(static_cast<float>(n));
  for (std::int64_t i = 0; i < head_size; ++i) x[i] *= factor;
}

}  // namespace staircase
