// The device that the tests are for.
#pragma once

#include <cstdlib>
#include <memory>
#include <string_view>

#include "kernels/device.h"

namespace staircase {

/// Whether the tests are for the GPU: where STAIRCASE_TEST_DEVICE is cuda, as tools/gpu-check sets it.
inline bool tests_are_for_gpu() {
  const char* const name = std::getenv("STAIRCASE_TEST_DEVICE");
  return name != nullptr && std::string_view(name) == "cuda";
}

/// The GPU if the tests are for it, otherwise the CPU with that many threads.
inline std::unique_ptr<Device> make_test_device(int threads) {
  return tests_are_for_gpu() ? make_cuda_device() : make_cpu_device(threads);
}

}  // namespace staircase
