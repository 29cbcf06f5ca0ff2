#include <array>

#include "kernels/rungs/cuda/attention/attention.h"

namespace staircase::rungs::gpu_attention {

std::span<const AttentionRung> ladder() {
  static const std::array rungs{kThreeKernels, kBlock, kWideLoads, kOnline, kGroups, kSplitKeys, kLastBlock};
  return rungs;
}

}  // namespace staircase::rungs::gpu_attention
