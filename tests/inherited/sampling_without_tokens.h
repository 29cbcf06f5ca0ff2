// The function that the checks of 05 to 08 call: no sampling rule there depends on earlier tokens.
#pragma once

#include "sampling.h"

namespace staircase {

inline void process(std::span<float> logits, const SamplingOptions& options) {
  process(logits, {}, options);
}

}  // namespace staircase
