#include <doctest/doctest.h>

#include "tests/cuda_emulation/kernels.h"
#include "tests/kernels/gpu_rung_cases.h"

void on_every_gpu(const std::function<void()>& test) {
  in_every_order(test);
}
