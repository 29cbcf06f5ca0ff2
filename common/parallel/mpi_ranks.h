// Ranks that are processes: mpirun starts them, on one machine or several.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "common/parallel/ranks.h"

namespace staircase {

/// Returns the GPU of process `number` of this machine: entry `number` of `visible`, the value of
/// CUDA_VISIBLE_DEVICES. Without a value all GPUs are visible, so process 2 gets GPU 2. A list of one GPU was
/// chosen for this process alone and an empty list hides all GPUs, so both are returned unchanged. If a
/// longer list has too few entries, returns "-1", which is no GPU.
std::string own_gpu(const std::optional<std::string>& visible, int number);

/// Connects this process with the others that mpirun has started. Without mpirun, or in a program built
/// without MPI, this process is the only rank. Otherwise each rank sees only one GPU from then on.
std::unique_ptr<Ranks> started_ranks();

}  // namespace staircase
