// The meaning of a regular expression as a tree, from which an automaton can be built.
#pragma once

#include <string_view>
#include <vector>

#include "common/text/utf8_ranges.h"

namespace staircase {

struct RegexPart {
  enum class Kind {
    kByte,      ///< one byte of a range
    kSequence,  ///< its parts, one after another; without any, the empty text
    kFront,     ///< the same, but a text may stop before any of the parts
    kChoice,    ///< one of its parts
    kLoop,      ///< its only part, once or more
    kRepeat,    ///< in grammars, for the two above: its only part, `least` to `most` times
    kRule,      ///< in grammars: what the rule of number `rule` describes
  };
  static constexpr int kNoLimit = -1;

  Kind kind;
  std::vector<RegexPart> parts = {};
  ByteRange bytes = {};
  int least = 0, most = 0, rule = 0;
};

/// Reads these forms; a character of a set is any of Unicode:
///
///     ab   a|b   (a)   (?:a)        one after another, one of them, a group
///     a*   a+   a?   a{2}   a{2,}   a{2,5}
///     é   \.   \n   \r   \t          a character
///     .   [a-z_]   [^"]             all but a line feed; a set; all but a set
///     \d \w \s   \D \W \S          sets of ASCII, and all but these
///
/// The tree has neither counts nor characters: `a{2,5}` is `aa` and a front of three `a`, and a character is
/// the sequence of its bytes in UTF-8. Throws UsageError with the place for all else, such as `\b`, `^`,
/// `a*?`, `(?=a)` and `[z-a]`. It also refuses a pattern that is no valid UTF-8, has more than 50,000 parts,
/// or more than 100 groups in one another.
RegexPart parse_regex(std::string_view pattern);

/// For grammars of JSON: what stands between the quotation marks of a string in which a JSON Schema's
/// `pattern` matches somewhere, or where ^ and $ say. Repetitions are kRepeat, and `any` is any character of
/// a string. A character of a set has one form: itself, or the shortest escape where JSON needs one. `\s` and
/// `.` are those of ECMAScript. Also reads `a*?` and \u00e9 \x41 \f \v.
RegexPart parse_json_pattern(std::string_view pattern, const RegexPart& any);

}  // namespace staircase
