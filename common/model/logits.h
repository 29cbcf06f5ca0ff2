// The logits of a batch. They stay on the device until they are read: a greedy row needs only one number of
// them, and a row with top-k sampling few more than k.
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

/// The largest logits of a row in descending order; among equal logits, the lowest token id comes first.
struct LargestLogits {
  std::span<const std::int32_t> tokens;  ///< [k]
  std::span<const float> values;         ///< [k]
  float log_sum;                         ///< log Σ exp(logit) of the whole row
  std::size_t vocab_size;
};

/// How the logits are read from the model, which also learns what the next pass should copy to the host.
struct LogitsUse {
  /// Returns some whole rows on the host: `count` numbers from number `first` on. If the next pass is
  /// `expected` to be read in the same way, it may copy its logits at once.
  std::function<std::span<const float>(std::size_t first, std::size_t count, bool expected)> read;
  /// Announces that a row needs only its `count` largest logits.
  std::function<void(std::size_t count)> ask = [](std::size_t) {};
};

/// [rows, vocab_size], or some of the rows. Valid as long as the memory that it was constructed from.
class Logits {
 public:
  /// Logits that are on the host.
  Logits(std::span<const float> values) : values_(values), size_(values.size()) {}

  /// Logits on the device. The host has only `found`: what Device::argmax (k = 0) or Device::k_largest
  /// returned for each row.
  Logits(std::span<const std::int32_t> found, std::size_t k, std::size_t vocab_size, LogitsUse use)
      : found_(found),
        k_(k),
        size_(found.size() / (2 * k + 1) * vocab_size),
        vocab_size_(vocab_size),
        use_(std::move(use)) {}

  /// Logits on the host, whose owner learns through `use` how they are read.
  Logits(std::span<const float> values, LogitsUse use) : Logits(values) { use_ = std::move(use); }

  /// The number of logits: rows · vocab_size.
  std::size_t size() const { return size_; }

  /// Some whole rows: `first` and `count` are multiples of vocab_size.
  Logits subspan(std::size_t first, std::size_t count) const {
    Logits part = *this;
    part.first_ += first;
    part.size_ = count;
    return part;
  }

  /// All logits, on the host.
  operator std::span<const float>() const { return read(true); }

  /// All logits, on the host, for a reader that usually needs only the largest. So the next pass does not
  /// copy all of them in advance.
  std::span<const float> read_once() const { return read(false); }

  /// The token with the largest logit of one row; among equal logits, the lowest id. Reads no other logit
  /// from the device.
  int argmax() const {
    return found_.empty() ? staircase::argmax(values_.subspan(first_, size_)) : found_of_row()[0];
  }

  /// At least the `count` largest logits of one row, or nothing if this pass has found fewer. The next pass
  /// then finds that many, up to kMostLargest.
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

  std::span<const float> values_;        // the logits of all rows, if they are on the host
  std::span<const std::int32_t> found_;  // what was found in each row, [rows, 2 k + 1]
  std::size_t k_ = 0;
  std::size_t first_ = 0, size_ = 0, vocab_size_ = 0;
  LogitsUse use_;
};

}  // namespace staircase
