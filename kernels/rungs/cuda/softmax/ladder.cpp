#include <array>

#include "kernels/rungs/cuda/softmax/softmax.h"

namespace staircase::rungs::gpu_softmax {

std::span<const SoftmaxRung> ladder() {
  static const std::array rungs{kThread, kBlock, kOnline, kSplit};
  return rungs;
}

}  // namespace staircase::rungs::gpu_softmax
