// The bytes of many characters at once: for automata that read text byte by byte.
#pragma once

#include <vector>

namespace staircase {

struct ByteRange {
  unsigned char first, last;  ///< both included

  bool holds(char byte) const {
    return first <= static_cast<unsigned char>(byte) && static_cast<unsigned char>(byte) <= last;
  }
};

/// The UTF-8 forms of the code points from `first` to `last`, as sequences of 1 to 4 ranges. The bytes of a
/// character fit one of these sequences, byte by byte, exactly if it is one of them. Surrogates have no form,
/// so they are left out. U+0000 to U+10FFFF, the whole of Unicode, takes nine sequences.
std::vector<std::vector<ByteRange>> utf8_ranges(char32_t first, char32_t last);

}  // namespace staircase
