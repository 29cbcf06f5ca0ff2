// The alphabet of byte-level vocabularies. Their files are text, so they write each byte as a printable
// character. A byte that is printable in Latin-1 represents itself, and the other 68 become U+0100 and up, in
// order. The space, for example, becomes U+0120, "Ġ".
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace staircase {

class ByteAlphabet {
 public:
  ByteAlphabet();

  /// The bytes that `written`, valid UTF-8, represents; nothing if it contains a character outside the
  /// alphabet.
  std::optional<std::string> read(std::string_view written) const;

 private:
  std::array<int, 256 + 68> bytes_;  // by code point
};

}  // namespace staircase
