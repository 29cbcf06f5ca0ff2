// The one way to standard output.
#pragma once

#include <string>

namespace staircase {

/// Writes at once, so that a reader sees each token as it is chosen. Throws Error when standard output takes
/// no more.
void print(const std::string& text);

}  // namespace staircase
