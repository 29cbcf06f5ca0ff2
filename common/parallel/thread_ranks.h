// Ranks as threads of one process: for tests, and for a look at several ranks without MPI.
#pragma once

#include <functional>

#include "common/parallel/ranks.h"

namespace staircase {

/// Calls `work` once for each of `size` ranks, all at the same time, and returns when all have ended. If one
/// of them throws, the others are let go by an Error from their next call, and the first exception is thrown.
void run_as_threads(int size, const std::function<void(Ranks& ranks)>& work);

}  // namespace staircase
