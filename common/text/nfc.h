// Unicode's normal form C, in which "é" is one character and never an "e" followed by an accent.
#pragma once

#include <string>
#include <string_view>

namespace staircase {

/// Whether this build has utf8proc, which knows Unicode's tables.
bool has_nfc();

/// `text`, valid UTF-8, in normal form C, in near-linear time. Throws Error if has_nfc() is false.
std::string to_nfc(std::string_view text);

}  // namespace staircase
