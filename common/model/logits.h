// The logits of a batch. They stay on the device until they are read: a greedy row needs one number of them,
// and a row with a top-k few more than k.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "kernels/device.h"

namespace staircase {

/// The largest logits of a row in falling order, of equal ones the lowest token first.
struct LargestLogits {
  std::span<const std::int32_t> tokens;  ///< [k]
  std::span<const float> values;         ///< [k]
  float log_sum;                         ///< log Σ exp(logit) of the whole row
  std::size_t vocab_size;
};

/// How a model gives its logits away, and learns what the next pass should bring to the host.
struct LogitsUse {
  /// Returns some whole rows, on the host: `count` numbers from the first one on. If that is `expected` of
  /// the next pass, too, it may copy them at once.
  std::function<std::span<const float>(std::size_t first, std::size_t count, bool expected)> read;
  /// As many of the largest would be enough for a row.
  std::function<void(std::size_t count)> ask = [](std::size_t) {};
};

/// [rows, vocab_size], or the part of a row. Valid as long as what it was made from.
class Logits {
 public:
  /// Those that are on the host.
  Logits(std::span<const float> values) : values_(values), size_(values.size()) {}

  /// Those on the device, of which the host has what Device::argmax found in each row (k = 0), or
  /// Device::k_largest.
  Logits(std::span<const std::int32_t> found, std::size_t k, std::size_t vocab_size, LogitsUse use)
      : found_(found),
        k_(k),
        size_(found.size() / (2 * k + 1) * vocab_size),
        vocab_size_(vocab_size),
        use_(std::move(use)) {}

  /// Those on the host, whose owner wants to know how they are used.
  Logits(std::span<const float> values, LogitsUse use) : Logits(values) { use_ = std::move(use); }

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
  operator std::span<const float>() const { return read(true); }

  /// The same for a reader that could do without most of them as a rule.
  std::span<const float> read_once() const { return read(false); }

  /// The token with the largest logit of one row, the lowest id among equals. Reads no other.
  int argmax() const {
    return found_.empty() ? staircase::argmax(values_.subspan(first_, size_)) : found_of_row()[0];
  }

  /// The `count` largest logits of one row or more, or nothing if this pass has found fewer. Then the next
  /// one finds them, up to kMostLargest.
  std::optional<LargestLogits> largest(std::size_t count) const {
    if (use_.ask) use_.ask(count);
    if (k_ < std::min(count, vocab_size_) || k_ == 0) return {};
    const std::span<const std::int32_t> found = found_of_row();
    const auto* const floats = reinterpret_cast<const float*>(found.data());
    return LargestLogits{found.first(k_), {floats + k_, k_}, floats[2 * k_], vocab_size_};
  }

 private:
  std::span<const float> read(bool expected) const {
    return use_.read ? use_.read(first_, size_, expected) : values_.subspan(first_, size_);
  }
  std::span<const std::int32_t> found_of_row() const {
    const std::size_t width = 2 * k_ + 1;
    return found_.subspan(first_ / vocab_size_ * width, width);
  }

  std::span<const float> values_;        // of all rows, if they are on the host
  std::span<const std::int32_t> found_;  // in all rows, [rows, 2 k + 1]
  std::size_t k_ = 0;
  std::size_t first_ = 0, size_ = 0, vocab_size_ = 0;
  LogitsUse use_;
};

}  // namespace staircase
