// Stands in for CUDA's bfloat16: storage, and the conversions that are in use.
#pragma once

#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
  std::uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 x) {
  const std::uint32_t wide = std::uint32_t{x.bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}
