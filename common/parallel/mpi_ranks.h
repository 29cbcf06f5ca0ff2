// Ranks as processes, on one machine or several, that mpirun has started.
#pragma once

#include <memory>

#include "common/parallel/ranks.h"

namespace staircase {

/// This process among those that mpirun has started; the only one without mpirun, or in a program that was
/// built without MPI.
std::unique_ptr<Ranks> started_ranks();

}  // namespace staircase
