// All output to standard output goes through here, and what a terminal may be sent.
#pragma once

#include <cstdio>
#include <string>

namespace staircase {

/// Writes immediately, so a reader sees each token as it is chosen. Throws Error if standard output accepts
/// no more text.
void print(const std::string& text);

/// Whether terminals here obey escape sequences: without TERM, or with "dumb", they would show them.
bool obeys_escapes();

/// Whether the stream shows colours: it is such a terminal, and NO_COLOR is not set (https://no-color.org).
bool has_colours(std::FILE* stream);

}  // namespace staircase
