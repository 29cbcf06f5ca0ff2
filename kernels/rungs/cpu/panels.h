// W in panels of 64 columns: [n_out / 64, n_in, 64], the last panel padded with zeros. A panel is read from
// front to back, so every byte of a cache line is used, and the processor can predict the next line.
#pragma once

#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cstdint>

#include "kernels/half.h"
#include "kernels/rungs/cpu/rung.h"

namespace staircase::rungs {

constexpr std::int64_t kPanel = 64;

constexpr std::int64_t panels_of(std::int64_t n_out) {
  return (n_out + kPanel - 1) / kPanel;
}

/// An array of numbers, aligned to a cache line and initially 0.
template <typename T>
class Memory {
 public:
  explicit Memory(std::int64_t count)
      : count_(count),
        values_(hwy::AllocateAligned<T>(static_cast<std::size_t>(std::max<std::int64_t>(count, 1)))) {
    if (values_ == nullptr) throw std::bad_alloc();
    std::fill_n(values_.get(), count, T());
  }
  T* data() { return values_.get(); }
  const T* data() const { return values_.get(); }
  std::int64_t bytes() const { return count_ * std::int64_t{sizeof(T)}; }

 private:
  std::int64_t count_;
  hwy::AlignedFreeUniquePtr<T[]> values_;
};

/// Packs w [n_in, n_out] into panels. `convert` is applied to each number.
template <typename T, typename Convert>
Memory<T> packed(const ProductShape& shape, const float* w, const Convert& convert) {
  Memory<T> panels(panels_of(shape.n_out) * shape.n_in * kPanel);
  for (std::int64_t i = 0; i < shape.n_in; ++i) {
    for (std::int64_t o = 0; o < shape.n_out; ++o) {
      panels.data()[(o / kPanel * shape.n_in + i) * kPanel + o % kPanel] = convert(w[i * shape.n_out + o]);
    }
  }
  return panels;
}

inline Memory<float> packed(const ProductShape& shape, const float* w) {
  return packed<float>(shape, w, [](float value) { return value; });
}

/// Packs w [n_in, n_out] as bfloat16, with two neighbours of a column together: [n_out / 64, depth / 2, 64,
/// 2]. The depth is at least n_in and even; zeros follow w.
inline Memory<std::uint16_t> packed_pairs(const ProductShape& shape, const float* w, std::int64_t depth) {
  const std::int64_t pairs = depth / 2;
  Memory<std::uint16_t> panels(panels_of(shape.n_out) * pairs * kPanel * 2);
  for (std::int64_t i = 0; i < shape.n_in; ++i) {
    for (std::int64_t o = 0; o < shape.n_out; ++o) {
      panels.data()[((o / kPanel * pairs + i / 2) * kPanel + o % kPanel) * 2 + i % 2] =
          bfloat16_from_float32(w[i * shape.n_out + o]);
    }
  }
  return panels;
}

/// Rounds x [rows, n_in] to bfloat16, [rows, depth].
inline void round_rows(ThreadTeam& team, const ProductShape& shape, const float* x, std::int64_t depth,
                       std::uint16_t* rounded) {
  parallel_ranges(team, shape.rows, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r)
      std::transform(x + r * shape.n_in, x + (r + 1) * shape.n_in, rounded + r * depth,
                     bfloat16_from_float32);
  });
}

/// The number of columns of the result in panel p: 64, or fewer in the last panel.
inline std::int64_t columns_of(const ProductShape& shape, std::int64_t p) {
  return std::min(kPanel, shape.n_out - p * kPanel);
}

}  // namespace staircase::rungs
