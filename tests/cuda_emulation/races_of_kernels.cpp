// Linked to the tests of the kernels, this has them watched for races from the start.
#include "tests/cuda_emulation/race_check.h"

namespace {

[[maybe_unused]] const bool watched = (cuda_emulation::check_races(true), true);

}  // namespace
