// Characters by their number.
#pragma once

#include <string>

namespace staircase {

/// UTF-8 of a code point, from the definition and without any check.
inline std::string encoded(unsigned code_point) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | ((code_point >> shift) & 0x3F)); };
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  if (code_point < 0x800) return {static_cast<char>(0xC0 | code_point >> 6), tail(0)};
  if (code_point < 0x10000) return {static_cast<char>(0xE0 | code_point >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | code_point >> 18), tail(12), tail(6), tail(0)};
}

}  // namespace staircase
