// The ladder of y [n_out] = x [n_in] · W [n_in, n_out], one file per rung.
#pragma once

#include "kernels/rungs/cpu/rung.h"

namespace staircase::rungs::matvec {

extern const Rung kPlain, kLoopOrder, kRegisters, kPackedPanels, kThreads, kPrefetch, kBFloat16, kInt8,
    kInt8Products;

}  // namespace staircase::rungs::matvec
