// Arbitrary text within other text.
#pragma once

#include <string>
#include <string_view>

namespace staircase {

/// A text in JSON, with quotation marks. Invalid UTF-8 becomes U+FFFD.
std::string in_json(std::string_view text);

/// A text on one line, in quotes, with "..." after the first `longest` bytes. Quotes, backslashes and control
/// characters are escaped as in JSON; invalid UTF-8 becomes U+FFFD.
std::string quoted(const std::string& text, std::size_t longest = std::string::npos);

/// A value as a person typed it, for a message: quoted and shortened unless it is one short word.
std::string typed(std::string_view text);

/// `bytes` as UTF-8 without control characters, which a terminal would obey: they are escaped, and so are
/// line breaks unless the text `has_lines`. Invalid UTF-8 becomes U+FFFD, since some terminals obey 0x9b,
/// too. Where the locale is not UTF-8, the few signs that our own lines draw with become ASCII: × an x.
std::string printable(std::string_view bytes, bool has_lines = false);

}  // namespace staircase
