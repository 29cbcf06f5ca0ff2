// A function that a text may call, as in [calc(3*4) = 12]: the model writes the call, and the program the
// result.
#pragma once

#include <fmt/format.h>

#include <regex>
#include <string>

namespace staircase {

/// The rest of the call with which the text ends, such as " 12]" for `[calc(3*4) =`; empty if it ends with no
/// call. Calls add, subtract or multiply two whole numbers of up to 9 digits.
inline std::string result_at_end(const std::string& text) {
  static const std::regex call(R"(\[calc\((\d{1,9})([-+*])(\d{1,9})\) =$)");
  std::smatch parts;
  if (!std::regex_search(text, parts, call)) return "";
  const long long a = std::stoll(parts[1]), b = std::stoll(parts[3]);
  const char sign = *parts[2].first;
  return fmt::format(" {}]", sign == '+' ? a + b : sign == '-' ? a - b : a * b);
}

}  // namespace staircase
