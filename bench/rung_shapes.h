// The shapes for measuring the ladders of kernels/rungs.
#pragma once

#include "kernels/rungs/cpu/attention/attention.h"
#include "kernels/rungs/cpu/rung.h"

namespace staircase::bench {

/// With one row, the operands are larger than the caches; with many rows, they fit.
inline constexpr rungs::AttentionShape kAttentionShape{9, 3, 64, 32768}, kPromptShape{9, 3, 64, 2048};
inline constexpr rungs::ProductShape kMatvecShape{1, 1024, 50257}, kProductShape{96, 768, 3072};

}  // namespace staircase::bench
