#include <array>

#include "kernels/rungs/cuda/layer_norm/layer_norm.h"

namespace staircase::rungs::gpu_layer_norm {

std::span<const LayerNormRung> ladder() {
  static const std::array rungs{kThread,       kTree,       kWarpSums,     kRegisters,
                                kOneReduction, kWarpPerRow, kBeforeTheWait};
  return rungs;
}

}  // namespace staircase::rungs::gpu_layer_norm
