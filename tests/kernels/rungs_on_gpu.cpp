#include "tests/kernels/gpu_rung_cases.h"
#include "tests/test_device.h"

void on_every_gpu(const std::function<void()>& test) {
  if (staircase::tests_are_for_gpu()) test();
}
