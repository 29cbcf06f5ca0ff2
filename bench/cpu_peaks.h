// The machine's limits: reading memory and multiplying. Both use our own loops, which do nothing else.
#pragma once

#include <cstddef>

#include "kernels/device.h"

namespace staircase::bench {

/// A buffer that is read from end to end, each thread its own share: decoding at the cost of reading the
/// weights alone. The device allocates it, so it gets the same pages as the weights.
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
