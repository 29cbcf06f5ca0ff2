// Translates the regular expressions in tokenizer files, which are written for Oniguruma, to the syntax of
// PCRE2.
#pragma once

#include <string>
#include <string_view>

namespace staircase {

/// Returns a pattern for PCRE2 that matches the same texts. Throws Error that names a part which PCRE2 cannot
/// express.
std::string to_pcre2(std::string_view pattern);

}  // namespace staircase
