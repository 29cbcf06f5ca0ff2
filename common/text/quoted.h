// Text that is shown in the midst of other text.
#pragma once

#include <string>

namespace staircase {

/// A text on one line, in quotes. Quotes, backslashes and control characters in it are escaped.
std::string quoted(const std::string& text);

}  // namespace staircase
