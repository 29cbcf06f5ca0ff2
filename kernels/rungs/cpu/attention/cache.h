// Keys and values as most rungs read them: both are [n_kv_head, positions, head_size], so the positions of a
// head follow each other in memory.
#pragma once

#include <cmath>

#include "kernels/rungs/cpu/attention/attention.h"
#include "kernels/rungs/cpu/panels.h"

namespace staircase::rungs::attention {

template <typename T>
class Cache {
 public:
  template <typename Convert>
  Cache(const AttentionShape& shape, const float* keys, const float* values, const Convert& convert)
      : head_(shape.positions * shape.head_size),
        keys_(shape.n_kv_head * head_),
        values_(shape.n_kv_head * head_) {
    std::transform(keys, keys + shape.n_kv_head * head_, keys_.data(), convert);
    std::transform(values, values + shape.n_kv_head * head_, values_.data(), convert);
  }
  Cache(const AttentionShape& shape, const float* keys, const float* values)
      : Cache(shape, keys, values, [](float value) { return value; }) {}

  /// [positions, head_size]
  const T* keys(std::int64_t kv_head) const { return keys_.data() + kv_head * head_; }
  const T* values(std::int64_t kv_head) const { return values_.data() + kv_head * head_; }
  std::int64_t bytes() const { return keys_.bytes() + values_.bytes(); }

 private:
  std::int64_t head_;
  Memory<T> keys_, values_;
};

/// Keys and values, where the keys of 64 positions form a panel as in the matrix product: [n_kv_head, blocks,
/// head_size, 64], the last block padded with zeros. So one feature of 64 positions is read at once.
template <typename T>
class PackedCache {
 public:
  template <typename Convert>
  PackedCache(const AttentionShape& shape, const float* keys, const float* values, const Convert& convert)
      : block_(shape.head_size * kPanel),
        blocks_(panels_of(shape.positions)),
        head_(shape.positions * shape.head_size),
        keys_(shape.n_kv_head * blocks_ * block_),
        values_(shape.n_kv_head * head_) {
    std::transform(values, values + shape.n_kv_head * head_, values_.data(), convert);
    for (std::int64_t row = 0; row < shape.n_kv_head * shape.positions; ++row) {
      const std::int64_t kv_head = row / shape.positions, p = row % shape.positions;
      T* const block = keys_.data() + (kv_head * blocks_ + p / kPanel) * block_;
      for (std::int64_t f = 0; f < shape.head_size; ++f)
        block[f * kPanel + p % kPanel] = convert(keys[row * shape.head_size + f]);
    }
  }

  /// [head_size, 64]
  const T* keys(std::int64_t kv_head, std::int64_t block) const {
    return keys_.data() + (kv_head * blocks_ + block) * block_;
  }
  /// [positions, head_size]
  const T* values(std::int64_t kv_head) const { return values_.data() + kv_head * head_; }
  std::int64_t bytes() const { return keys_.bytes() + values_.bytes(); }

 private:
  std::int64_t block_, blocks_, head_;
  Memory<T> keys_, values_;
};

/// The factor for a dot product of query and key.
inline float scale_of(const AttentionShape& shape) {
  return 1.0f / std::sqrt(static_cast<float>(shape.head_size));
}

}  // namespace staircase::rungs::attention
