// Numbers between bounds, as parts of a grammar: the text of a number, read digit by digit.
#pragma once

#include <optional>

#include "common/text/regex_syntax.h"

namespace staircase {

/// Any number of JSON, and any without a fraction and an exponent.
RegexPart any_number();
RegexPart any_integer();

/// The integers from `least` to `most`, of at most 18 digits; without a bound if it has no value. No text if
/// `least` is larger.
RegexPart integer_range(std::optional<long long> least, std::optional<long long> most);

/// The numbers from `least` to `most`, which may have a fraction but no exponent; without the bounds
/// themselves if they are excluded.
RegexPart fraction_range(std::optional<long long> least, std::optional<long long> most, bool excludes_least,
                         bool excludes_most);

}  // namespace staircase
