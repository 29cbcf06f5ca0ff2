// Translates regular expressions of tokenizer files, which are written for Oniguruma, into the syntax of
// PCRE2.
#pragma once

#include <string>
#include <string_view>

namespace staircase {

/// `pattern` for PCRE2, so it matches the same texts. Throws Error with the part that has another meaning
/// there, or none.
std::string to_pcre2(std::string_view pattern);

}  // namespace staircase
