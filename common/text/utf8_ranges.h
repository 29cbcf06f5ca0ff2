// Describes the bytes of many characters at once, for automata that read text byte by byte.
#pragma once

#include <vector>

namespace staircase {

struct ByteRange {
  unsigned char first, last;  ///< both included

  bool holds(char byte) const {
    return first <= static_cast<unsigned char>(byte) && static_cast<unsigned char>(byte) <= last;
  }
};

/// Returns the UTF-8 forms of the code points from `first` to `last`, as sequences of 1 to 4 byte ranges. A
/// character is one of these code points exactly if its bytes fit one of the sequences. Surrogates have no
/// form, so they are left out. The whole of Unicode, U+0000 to U+10FFFF, needs nine sequences.
std::vector<std::vector<ByteRange>> utf8_ranges(char32_t first, char32_t last);

}  // namespace staircase
