// The machine's limits: the rates of reading memory and of multiplying, measured with loops that do nothing
// else.
#pragma once

#include <cstddef>

#include "kernels/device.h"

namespace staircase::bench {

/// Reads a buffer from end to end, each thread its own share. Decoding would be this fast if it only read the
/// weights. The device allocates the buffer, so it gets the same pages as the weights.
class ReadBandwidth {
 public:
  ReadBandwidth(Device& device, std::size_t bytes, int threads);

  std::size_t bytes() const { return buffer_.bytes(); }

  /// Reads the buffer once.
  void read();

 private:
  Tensor buffer_;
  int threads_;
};

/// Computes at least `steps` rounds of multiply-adds on each thread, in registers only. Returns the number of
/// floating-point operations.
double multiply_add(int threads, int steps);

}  // namespace staircase::bench
