// What the machine can do at best: read memory and multiply. Both with loops of our own that do nothing else.
#pragma once

#include <cstddef>

#include "kernels/device.h"

namespace staircase::bench {

/// A buffer that is read from end to end, each thread its own share: what decoding would do if it cost
/// nothing but reading the weights. The device allocates it, so it gets the same pages as the weights.
class ReadBandwidth {
 public:
  ReadBandwidth(Device& device, std::size_t bytes, int threads);

  std::size_t bytes() const { return buffer_.bytes(); }

  /// Reads it once.
  void read();

 private:
  Tensor buffer_;
  int threads_;
};

/// Does at least `steps` rounds of multiply-adds on each thread, in registers only, and returns the number of
/// floating-point operations done.
double multiply_add(int threads, int steps);

}  // namespace staircase::bench
