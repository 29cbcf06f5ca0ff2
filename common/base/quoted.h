// Quotes arbitrary text for messages.
#pragma once

#include <string>
#include <string_view>

namespace staircase {

/// Returns `text` as a JSON string, with quotation marks. Invalid UTF-8 becomes U+FFFD.
std::string in_json(std::string_view text);

/// Returns `text` on one line, in quotes, cut to `longest` bytes and "..." if it is longer. Quotes,
/// backslashes and control characters are escaped as in JSON; invalid UTF-8 becomes U+FFFD.
std::string quoted(const std::string& text, std::size_t longest = std::string::npos);

/// Returns a value that a person typed, for a message: unchanged if it is one short word, otherwise quoted
/// and shortened.
std::string typed(std::string_view text);

/// Returns `bytes` as UTF-8 with escaped control characters, because a terminal would obey them. Line breaks
/// are also escaped unless `has_lines` is true. Invalid UTF-8 becomes U+FFFD, since some terminals also obey
/// the byte 0x9b. Unless the locale is UTF-8, the drawing characters of our own output become ASCII: ×
/// becomes x.
std::string printable(std::string_view bytes, bool has_lines = false);

}  // namespace staircase
