// Ranks as threads of one process: for tests, and to try several ranks without MPI.
#pragma once

#include <functional>

#include "common/parallel/ranks.h"

namespace staircase {

/// Calls `work` once for each of `size` ranks, all at the same time, and returns when all have ended. If one
/// of them throws, the next call of each other rank throws Error, and this function rethrows the first
/// exception.
void run_as_threads(int size, const std::function<void(Ranks& ranks)>& work);

}  // namespace staircase
