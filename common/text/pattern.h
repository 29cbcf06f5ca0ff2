// Regular expressions of tokenizer files, which are written for Oniguruma, in the syntax of PCRE2.
#pragma once

#include <string>
#include <string_view>

namespace staircase {

/// `pattern` for PCRE2, so that it matches the same texts. Throws Error that names what means something else
/// there, or nothing.
std::string to_pcre2(std::string_view pattern);

}  // namespace staircase
