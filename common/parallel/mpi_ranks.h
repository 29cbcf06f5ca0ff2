// Ranks as processes that mpirun has started, on one machine or several.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "common/parallel/ranks.h"

namespace staircase {

/// The GPU that process `number` of a machine takes, out of `visible`, the value of CUDA_VISIBLE_DEVICES.
/// Without one, all GPUs of the machine are visible. A list of one GPU was chosen for this process alone, and
/// an empty list hides all GPUs: both are returned. "-1", which is no GPU, if a longer list is too short.
std::string own_gpu(const std::optional<std::string>& visible, int number);

/// This process among those that mpirun has started. Without mpirun, or in a program built without MPI, it is
/// the only one. If there are several, each sees only one GPU from then on.
std::unique_ptr<Ranks> started_ranks();

}  // namespace staircase
