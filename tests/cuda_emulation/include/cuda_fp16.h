// Stands in for CUDA's binary16: storage, and the conversions that are in use.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

struct __half {
  std::uint16_t bits;
};

inline float __half2float(__half x) {
  const int exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
  const float sign = x.bits >> 15 != 0 ? -1.0f : 1.0f;
  if (exponent == 31) {
    return fraction != 0 ? std::numeric_limits<float>::quiet_NaN()
                         : sign * std::numeric_limits<float>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
}
