// The two 16-bit formats, one value at a time. float16 (IEEE 754-2019, binary16) has 5 bits of exponent and
// 10 of fraction; bfloat16 is the upper half of a float32. Rounding is to nearest, ties to even.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace staircase {

inline float float32_from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

inline std::uint16_t bfloat16_from_float32(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (x != x) return static_cast<std::uint16_t>(bits >> 16 | 0x40);  // rounding could turn NaN into infinity
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline float float32_from_float16(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16, exponent = bits >> 10 & 31,
                      fraction = bits & 0x3FF;
  if (exponent == 0) return (sign != 0 ? -0x1p-24f : 0x1p-24f) * static_cast<float>(fraction);
  const std::uint32_t wide_exponent = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide_exponent << 23 | fraction << 13);
}

inline std::uint16_t float16_from_float32(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7FFF'FFFF;
  std::uint32_t half = 0;
  if (size > 0x7F80'0000) {
    half = 0x7E00;  // NaN
  } else if (size >= 0x477F'F000) {
    half = 0x7C00;  // 65520 and more: infinity
  } else if (size >= 0x3880'0000) {
    half = (size - (112u << 23) + 0xFFF + (size >> 13 & 1)) >> 13;
  } else {
    // Below 2^-14 the steps are 2^-24, just as they are for a float32 from 1/2 on: adding 1/2 rounds to them.
    half =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5f) - std::bit_cast<std::uint32_t>(0.5f);
  }
  return static_cast<std::uint16_t>(sign | half);
}

}  // namespace staircase
