// Sets of characters, as patterns and grammars write them in brackets.
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

/// Takes the first character from `text`, which is not empty; nothing if it is no valid UTF-8.
std::optional<char32_t> take_code_point(std::string_view& text);

/// How many parts `any_of` makes.
int parts_of(const CodePoints& set);

/// A character of the set, as its bytes in UTF-8.
RegexPart any_of(const CodePoints& set);

/// A character of the set within a JSON string: itself, or the shortest escape where it needs one.
RegexPart any_of_in_json(const CodePoints& set);

/// The bytes of a text, one after another.
RegexPart bytes_of(std::string_view text);

}  // namespace staircase
