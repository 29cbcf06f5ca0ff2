// Keys and values of a head in bfloat16, as the matrices of two products: packed_head.h with two neighbours
// along the depth of a product together, as an instruction on pairs reads them.
#pragma once

#include "kernels/rungs/cpu/prefill_attention/prefill_attention.h"

namespace staircase::rungs::prefill_attention {

/// The depth of the keys' product is head_size, that of the values' product the positions. Both are rounded
/// up to a multiple of `step`, which is even. Zeros follow.
class PairedHead {
 public:
  PairedHead(const Prompt& p, std::int64_t kv_head, std::int64_t step)
      : size_((p.shape.head_size + step - 1) / step * step),
        positions_((p.shape.positions + step - 1) / step * step),
        keys_(panels_of(p.shape.positions) * size_ * kPanel),
        values_(panels_of(p.shape.head_size) * positions_ * kPanel) {
    const std::int64_t first = p.cache(kv_head * p.shape.group()), size = p.shape.head_size;
    for (std::int64_t i = 0; i < p.shape.positions; ++i) {
      const float *const key = p.keys + first + i * size, *const value = p.values + first + i * size;
      for (std::int64_t f = 0; f < size; ++f) {
        keys_.data()[place(i, f, size_)] = bfloat16_from_float32(key[f]);
        values_.data()[place(f, i, positions_)] = bfloat16_from_float32(value[f]);
      }
    }
  }

  /// Returns head_size, rounded up.
  std::int64_t size() const { return size_; }
  /// Returns the keys of 64 positions from `position` on, which must be a multiple of 64: [size / 2, 64, 2].
  const std::uint16_t* keys(std::int64_t position) const { return keys_.data() + position * size_; }
  /// Returns 64 features of the values, from `feature` on, which must be a multiple of 64, and from
  /// `position` on, which must be even: [positions / 2, 64, 2].
  const std::uint16_t* values(std::int64_t feature, std::int64_t position = 0) const {
    return values_.data() + feature * positions_ + position * kPanel;
  }

 private:
  static std::int64_t place(std::int64_t column, std::int64_t row, std::int64_t depth) {
    return column / kPanel * depth * kPanel + (row / 2 * kPanel + column % kPanel) * 2 + row % 2;
  }

  std::int64_t size_, positions_;
  Memory<std::uint16_t> keys_, values_;
};

}  // namespace staircase::rungs::prefill_attention
