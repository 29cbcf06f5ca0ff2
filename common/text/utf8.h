// Splits bytes into valid UTF-8 and the rest.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace staircase {

struct Utf8Run {
  bool valid;          ///< only characters, or only other bytes
  std::size_t length;  ///< in bytes
};

/// The longest run at the front of `bytes`, which are not empty, that is valid UTF-8 throughout or nowhere.
Utf8Run first_utf8_run(std::string_view bytes);

/// Moves everything that is complete out of `bytes` and returns it as valid UTF-8. A byte sequence that can
/// never become a character is replaced by U+FFFD, one per maximal subpart, as Python and the Unicode
/// standard do (chapter 3.9, table 3-8). A character whose last bytes may still arrive stays in `bytes`.
std::string take_complete_utf8(std::string& bytes);

/// All of `bytes` as valid UTF-8; an unfinished character at the end is replaced, too.
std::string to_valid_utf8(std::string_view bytes);

}  // namespace staircase
