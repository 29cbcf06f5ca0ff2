#include <array>

#include "kernels/rungs/cuda/product/product.h"

namespace staircase::rungs::gpu_product {

std::span<const ProductRung> ladder() {
  static const std::array rungs{kThread,      kSharedMemory, kRegisters,
                                kTensorCores, kCopiesAhead,  kBeforeTheWait};
  return rungs;
}

}  // namespace staircase::rungs::gpu_product
