// Regular expressions of settings.
#pragma once

#include <string_view>

namespace staircase {

/// Whether the pattern matches all of the text, as Python's re.fullmatch decides. Throws Error with the
/// reason for a pattern that is broken or that takes too many steps.
bool matches_whole(std::string_view pattern, std::string_view text);

}  // namespace staircase
