#include <array>

#include "kernels/rungs/cuda/matvec/matvec.h"

namespace staircase::rungs::gpu_matvec {

std::span<const MatvecRung> ladder() {
  static const std::array rungs{kThread,        kWarpPerOutput, kWideLoads, kLoadsInFlight, kSplitRows,
                                kBeforeTheWait, kAsyncCopies,   kBFloat16,  kInt8Products,  kBulkRing};
  return rungs;
}

}  // namespace staircase::rungs::gpu_matvec
