// Stands in for CUDA's binary16: storage, and the conversions that are in use.
#pragma once

#include "kernels/half.h"

struct __half {
  std::uint16_t bits;
};

inline float __half2float(__half x) {
  return staircase::float32_from_float16(x.bits);
}

inline __half __float2half_rn(float x) {
  return {staircase::float16_from_float32(x)};
}
