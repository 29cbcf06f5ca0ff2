// Runs a shared model under the lead of rank 0: rank 0 decides what to compute, and the other ranks take part
// in its passes.
#pragma once

#include <functional>

#include "common/model/model.h"
#include "common/parallel/ranks.h"

namespace staircase {

/// Calls `work` on rank 0. Meanwhile the other ranks compute their share of each of its passes, and return
/// when `work` does: they need neither the text nor the options, and decide nothing. A cache in `work` must
/// leave keys and values where the passes put them, as a paged cache does. Throws Error on all ranks if their
/// contexts differ. If `work` throws, the other ranks wait until the program ends them (Ranks::abort).
void lead_passes(Model& model, Ranks& ranks, const std::function<void()>& work);

}  // namespace staircase
