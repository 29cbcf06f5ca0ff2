// What the checks of 05 to 08 call: nothing there depends on the tokens before.
#pragma once

#include "common/decoding/sampling.h"

namespace staircase {

inline void process(std::span<float> logits, const SamplingOptions& options) {
  process(logits, {}, options);
}

}  // namespace staircase
