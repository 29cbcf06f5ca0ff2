// Keys and values of a head as the matrices of two products, of rung 4 and those above it.
#pragma once

#include "kernels/rungs/cpu/prefill_attention/prefill_attention.h"

namespace staircase::rungs::prefill_attention {

/// Copies keys and values into panels of 64 columns (panels.h). A column of the keys is a position, and a
/// column of the values is a feature. The last panels are padded with zeros.
class PackedHead {
 public:
  PackedHead(const Prompt& p, std::int64_t kv_head)
      : size_(p.shape.head_size),
        positions_(p.shape.positions),
        keys_(panels_of(positions_) * size_ * kPanel),
        values_(panels_of(size_) * positions_ * kPanel) {
    const std::int64_t first = p.cache(kv_head * p.shape.group());
    for (std::int64_t i = 0; i < positions_; ++i) {
      const float* const key = p.keys + first + i * size_;
      float* const column = keys_.data() + i / kPanel * size_ * kPanel + i % kPanel;
      for (std::int64_t f = 0; f < size_; ++f) column[f * kPanel] = key[f];
    }
    for (std::int64_t f = 0; f < size_; f += kPanel) {
      for (std::int64_t i = 0; i < positions_; ++i) {
        const float* const value = p.values + first + i * size_ + f;
        std::copy_n(value, std::min(kPanel, size_ - f), values_.data() + (f * positions_ + i * kPanel));
      }
    }
  }

  /// Returns the keys of 64 positions from `position` on, which must be a multiple of 64: [head_size, 64].
  const float* keys(std::int64_t position) const { return keys_.data() + position * size_; }
  /// Returns 64 features of the values, from `feature` on, which must be a multiple of 64, and from
  /// `position` on: [positions, 64].
  const float* values(std::int64_t feature, std::int64_t position = 0) const {
    return values_.data() + feature * positions_ + position * kPanel;
  }

 private:
  std::int64_t size_, positions_;
  Memory<float> keys_, values_;
};

}  // namespace staircase::rungs::prefill_attention
