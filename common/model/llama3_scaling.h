// How Llama 3.1 slows rotary positions for texts that are longer than in its original training. rotary.cpp
// reads and applies these numbers.
#pragma once

namespace staircase {

/// Pairs that rotate `high` times or more within `context` positions keep their speed. Pairs that rotate
/// `low` times or less are slowed by `factor`. In between, the speed changes smoothly.
struct Llama3Scaling {
  double factor = 1.0;  ///< 1 slows nothing
  double low = 1.0;
  double high = 4.0;
  double context = 8192.0;  ///< the context of the original training
};

}  // namespace staircase
