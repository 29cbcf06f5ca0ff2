// Unicode's normal form C: "é" becomes one character instead of an "e" followed by an accent.
#pragma once

#include <string>
#include <string_view>

namespace staircase {

/// Whether this build has utf8proc, which contains Unicode's tables.
bool has_nfc();

/// Returns `text`, valid UTF-8, in normal form C. Takes near-linear time. Throws Error if has_nfc() is false.
std::string to_nfc(std::string_view text);

}  // namespace staircase
