// The machine of programs that mpirun starts on emulated GPUs: it has four of them. STAIRCASE_LONGEST_WAIT is
// how many milliseconds a rank waits for another one's GPU.
#include <nccl.h>

#include <cstdlib>

#include "kernels/cuda/nccl_link.h"
#include "tests/cuda_emulation/include/cuda_runtime.h"

namespace {

[[maybe_unused]] const bool is_set_up = [] {
  cuda_emulation::settings.devices = 4;
  cuda_emulation::settings.hides_devices = true;
  if (const char* const longest = std::getenv("STAIRCASE_LONGEST_WAIT")) {
    staircase::cuda::NcclLink::longest_wait = std::chrono::milliseconds(std::atoi(longest));
  }
  return ncclGetErrorString(ncclSuccess) != nullptr;  // loads the library that replaces NCCL
}();

}  // namespace
