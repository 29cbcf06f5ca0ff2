// Finds markers in a text that arrives in pieces, which may cut a marker.
#pragma once

#include <string_view>

namespace staircase {

inline constexpr std::string_view kMarkerSpace = " \t\r\n";

inline std::string_view without_space_after(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kMarkerSpace) + 1);  // npos + 1 is 0
}

/// `text` up to a marker that may have begun at its end, and without the white space before that marker.
inline std::string_view surely_before(std::string_view text, std::string_view marker) {
  for (std::size_t length = marker.size() - 1; length > 0; --length) {
    if (text.ends_with(marker.substr(0, length)))
      return without_space_after(text.substr(0, text.size() - length));
  }
  return without_space_after(text);
}

}  // namespace staircase
