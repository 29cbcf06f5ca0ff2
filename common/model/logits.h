// The logits of a batch. They stay on the device until they are read: a greedy row needs one number of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "kernels/device.h"

namespace staircase {

/// [rows, vocab_size], or the part of a row. Valid as long as what it was made from.
class Logits {
 public:
  /// Those that are on the host.
  Logits(std::span<const float> values) : values_(values), size_(values.size()) {}

  /// Those of rows with these largest ones. `read` returns all of them, [largest.size() · vocab_size].
  Logits(std::span<const std::int32_t> largest, std::size_t vocab_size,
         std::function<std::span<const float>()> read)
      : largest_(largest),
        size_(largest.size() * vocab_size),
        vocab_size_(vocab_size),
        read_(std::move(read)) {}

  /// Those on the host, whose owner wants to know when they are read: by `read`, which returns them.
  Logits(std::span<const float> values, std::function<std::span<const float>()> read) : Logits(values) {
    read_ = std::move(read);
  }

  /// How many numbers: rows · vocab_size.
  std::size_t size() const { return size_; }

  /// Whole rows: both numbers are multiples of vocab_size.
  Logits subspan(std::size_t first, std::size_t count) const {
    Logits part = *this;
    part.first_ += first;
    part.size_ = count;
    return part;
  }

  /// All numbers, on the host.
  operator std::span<const float>() const { return (read_ ? read_() : values_).subspan(first_, size_); }

  /// The token with the largest logit of one row, the lowest id among equals. Reads no other.
  int argmax() const {
    if (largest_.empty()) return staircase::argmax(values_.subspan(first_, size_));
    return largest_[first_ / vocab_size_];
  }

 private:
  std::span<const float> values_;  // of all rows, if they are on the host
  std::span<const std::int32_t> largest_;
  std::size_t first_ = 0, size_ = 0, vocab_size_ = 0;
  std::function<std::span<const float>()> read_;
};

}  // namespace staircase
