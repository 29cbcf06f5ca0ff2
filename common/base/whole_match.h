// Matches the regular expressions in settings.
#pragma once

#include <string_view>

namespace staircase {

/// Whether the pattern matches the whole text, as Python's re.fullmatch decides. Throws Error with the reason
/// if the pattern is invalid or matching takes too many steps.
bool matches_whole(std::string_view pattern, std::string_view text);

}  // namespace staircase
