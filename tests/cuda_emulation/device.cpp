// What the emulated GPU says when it fails.
#include <doctest/doctest.h>

#include <string>

#include "kernels/device.h"
#include "tests/cuda_emulation/emulation.h"

namespace staircase {
namespace {

using cuda_emulation::settings;

template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("a machine without a GPU is told apart") {
  settings.devices = 0;
  CHECK(error_of([] { make_cuda_device(); }) == "the NVIDIA driver finds no GPU");
  settings.devices = 1;
  CHECK(make_cuda_device()->description() == "emulated GPU, 8.59 GB");
}

TEST_CASE("out of memory names the sizes") {
  const auto device = make_cuda_device();
  settings.memory = 1'500'000'000;
  CHECK(error_of([&] {
          device->allocate(DType::kFloat32, {1000, 500'000});
        }) == "the GPU has too little memory: 2.00 GB were asked for, 1.50 GB of 1.50 GB are free");
  settings.memory = std::size_t{8} << 30;
}

}  // namespace
}  // namespace staircase
