// Separates valid UTF-8 from other bytes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace staircase {

struct Utf8Run {
  bool valid;          ///< only characters, or only other bytes
  std::size_t length;  ///< in bytes
};

/// The longest run at the front of `bytes` that is entirely valid UTF-8 or entirely invalid. `bytes` must not
/// be empty.
Utf8Run first_utf8_run(std::string_view bytes);

/// Removes all complete characters from `bytes` and returns them as valid UTF-8. Each maximal subpart that
/// can never become a character is replaced by U+FFFD, as in Python and the Unicode standard (chapter 3.9,
/// table 3-8). A character whose last bytes may still arrive stays in `bytes`.
std::string take_complete_utf8(std::string& bytes);

/// Returns all of `bytes` as valid UTF-8. U+FFFD also replaces an unfinished character at the end.
std::string to_valid_utf8(std::string_view bytes);

}  // namespace staircase
