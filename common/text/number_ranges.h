// Parts of a grammar that describe the numbers between two bounds, digit by digit.
#pragma once

#include <optional>
#include <string>

#include "common/text/regex_syntax.h"

namespace staircase {

/// Any number in JSON, and any number without a fraction or an exponent.
RegexPart any_number();
RegexPart any_integer();

/// All numbers that are not whole, written without an exponent.
RegexPart any_fraction();

/// The integers from `least` to `most`, with at most 18 digits; a bound without a value does not limit them.
/// Matches nothing if `least` is larger than `most`.
RegexPart integer_range(std::optional<long long> least, std::optional<long long> most);

/// The numbers from `bound` up, and the numbers up to `bound`; with `excludes`, without the bound itself. The
/// numbers may have a fraction but no exponent. `bound` is a decimal without an exponent, such as -0.25.
RegexPart numbers_from(const std::string& bound, bool excludes);
RegexPart numbers_to(const std::string& bound, bool excludes);

}  // namespace staircase
