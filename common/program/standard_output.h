// Everything that programs write to standard output goes through print. The other functions state what a
// terminal supports.
#pragma once

#include <cstdio>
#include <string>

namespace staircase {

/// Writes immediately, so a reader sees each token as soon as it is chosen. Throws Error if standard output
/// accepts no more text.
void print(const std::string& text);

/// Whether the terminal obeys escape sequences. If TERM is not set, or is "dumb", it would show them as text.
bool obeys_escapes();

/// Whether the stream shows colours: it is a terminal that obeys escape sequences, and NO_COLOR is not set
/// (https://no-color.org).
bool has_colours(std::FILE* stream);

}  // namespace staircase
