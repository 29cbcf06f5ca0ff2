#include <array>

#include "kernels/rungs/cuda/boundaries/boundaries.h"

namespace staircase::rungs::gpu_boundaries {

std::span<const BoundaryRung> ladder() {
  static const std::array rungs{kWaits, kLaunches, kGraph, kBeforeTheWait, kOneKernel};
  return rungs;
}

}  // namespace staircase::rungs::gpu_boundaries
