// Recognizes misspelt names.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace staircase {

/// Returns how many letters of `name` differ from `known`, ignoring case and the separators - _ and space;
/// nothing if the two differ too much for a misspelling.
std::optional<std::size_t> wrong_letters(const std::string& name, const std::string& known);

}  // namespace staircase
