// Whether a name was meant to be another one.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace staircase {

/// How many letters of a misspelt name are wrong, besides capitals and separators; nothing for a name that is
/// no misspelling of the known one.
std::optional<std::size_t> wrong_letters(const std::string& name, const std::string& known);

}  // namespace staircase
