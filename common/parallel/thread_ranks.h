// Ranks that are threads of one process: for tests, and for trying several ranks without MPI.
#pragma once

#include <functional>

#include "common/parallel/ranks.h"

namespace staircase {

/// Calls `work` on `size` ranks at the same time, and returns when all have ended. If one of them throws, the
/// next call of every other rank throws Error, and this function rethrows the first exception.
void run_as_threads(int size, const std::function<void(Ranks& ranks)>& work);

}  // namespace staircase
