// How Llama 3.1 slows rotary positions for texts longer than those of its original training. rotary.cpp reads
// these numbers, and applies them.
#pragma once

namespace staircase {

/// Pairs that turn `high` times or more within `context` positions keep their speed; those that turn `low`
/// times or less are slowed by `factor`, and between the two the speed changes smoothly.
struct Llama3Scaling {
  double factor = 1.0;  ///< 1: nothing is slowed
  double low = 1.0;
  double high = 4.0;
  double context = 8192.0;  ///< of the original training
};

}  // namespace staircase
