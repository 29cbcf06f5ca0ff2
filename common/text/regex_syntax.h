// What a regular expression says, as a tree. Whoever looks for its texts builds an automaton from it.
#pragma once

#include <string_view>
#include <vector>

#include "common/text/utf8_ranges.h"

namespace staircase {

struct RegexPart {
  enum class Kind {
    kByte,      ///< one byte of a range
    kSequence,  ///< its parts, one after another; without any, the empty text
    kChoice,    ///< one of its parts
    kLoop,      ///< its only part, once or more
  };

  Kind kind;
  std::vector<RegexPart> parts = {};
  ByteRange bytes = {};
};

/// Reads `ab`, `a|b`, `(a)`, `a*`, `a+`, `a?`, `a{2}`, `a{2,}`, `a{2,5}`, and characters: `é`, `\.`, `\n`,
/// `.` (all but a line feed), `\d \w \s` and `\D \W \S` (of ASCII, and all but these), `[a-z_]`, `[^"]`.
/// Groups `(?: )` are the same as `( )`. The tree has neither counts nor characters: what may come up to five
/// times is there five times, and a character is the sequence of its bytes in UTF-8. Throws UsageError with
/// the place for all else, such as `\b`, `^`, `a*?`, `(?=a)`, `[z-a]`, for more than 20,000 parts, for more
/// than 100 groups in one another, and for a pattern that is no valid UTF-8.
RegexPart parse_regex(std::string_view pattern);

}  // namespace staircase
