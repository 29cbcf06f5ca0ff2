// Numbers between bounds, as parts of a grammar: the text of a number, read digit by digit.
#pragma once

#include <optional>
#include <string>

#include "common/text/regex_syntax.h"

namespace staircase {

/// Any number of JSON, and any without a fraction and an exponent.
RegexPart any_number();
RegexPart any_integer();

/// The numbers that are not whole, without an exponent.
RegexPart any_fraction();

/// The integers from `least` to `most`, of at most 18 digits; without a bound if it has no value. No text if
/// `least` is larger.
RegexPart integer_range(std::optional<long long> least, std::optional<long long> most);

/// The numbers from `bound` up, and those up to it, which may have a fraction but no exponent; without the
/// bound itself if it is excluded. It is written as a decimal, such as -0.25, without an exponent.
RegexPart numbers_from(const std::string& bound, bool excludes);
RegexPart numbers_to(const std::string& bound, bool excludes);

}  // namespace staircase
