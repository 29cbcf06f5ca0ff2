// Ranks as processes, on one machine or several, that mpirun has started.
#pragma once

#include <memory>
#include <string>

#include "common/parallel/ranks.h"

namespace staircase {

/// Which of `visible` GPUs, a list as of CUDA_VISIBLE_DEVICES, process `number` of a machine takes for
/// itself. An empty list is all of the machine. A list of one was chosen for this process alone, and stays.
std::string own_gpu(const std::string& visible, int number);

/// This process among those that mpirun has started; the only one without mpirun, or in a program that was
/// built without MPI. Among several, it sees one GPU from then on.
std::unique_ptr<Ranks> started_ranks();

}  // namespace staircase
