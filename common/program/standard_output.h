// All output to standard output goes through here.
#pragma once

#include <string>

namespace staircase {

/// Writes immediately, so a reader sees each token as it is chosen. Throws Error if standard output accepts
/// no more text.
void print(const std::string& text);

}  // namespace staircase
