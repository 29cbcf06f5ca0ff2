// Sets of characters, which patterns and grammars write in brackets.
#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "common/text/regex_syntax.h"

namespace staircase {

/// Ranges from the first character to the last, both included.
using CodePoints = std::vector<std::pair<char32_t, char32_t>>;

/// All characters of Unicode that are not in `set`.
CodePoints all_but(CodePoints set);

inline bool is_one(const CodePoints& set) {
  return set.size() == 1 && set[0].first == set[0].second;
}

/// Removes the first character from `text`, which must not be empty, and returns it; nothing if it is not
/// valid UTF-8.
std::optional<char32_t> take_code_point(std::string_view& text);

/// The number of parts in the result of `any_of`.
int parts_of(const CodePoints& set);

/// A part that describes one character of the set by its bytes in UTF-8.
RegexPart any_of(const CodePoints& set);

/// A part that describes one character of the set inside a JSON string: the character itself, or its shortest
/// escape if it needs one.
RegexPart any_of_in_json(const CodePoints& set);

/// A part that describes exactly this text.
RegexPart bytes_of(std::string_view text);

}  // namespace staircase
