// Stands in for CUDA's bfloat16: storage, and the conversions that are in use.
#pragma once

#include "kernels/half.h"

struct __nv_bfloat16 {
  std::uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 x) {
  return staircase::float32_from_bfloat16(x.bits);
}

inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return {staircase::bfloat16_from_float32(x)};
}
