// The ladder of y [rows, n_out] = x [rows, n_in] · W [n_in, n_out] for many rows, one file per rung.
#pragma once

#include "kernels/rungs/cpu/rung.h"

namespace staircase::rungs::product {

extern const Rung kPlain, kLoopOrder, kCacheBlocks, kPackedPanels, kRegisterTile, kThreads, kBFloat16, kInt8,
    kAmx;

}  // namespace staircase::rungs::product
