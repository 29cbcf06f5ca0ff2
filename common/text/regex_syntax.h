// The meaning of a regular expression as a tree. An automaton can be built from it.
#pragma once

#include <string_view>
#include <vector>

#include "common/text/utf8_ranges.h"

namespace staircase {

struct RegexPart {
  enum class Kind {
    kByte,      ///< one byte from a range
    kSequence,  ///< its parts, one after another; without parts, the empty text
    kFront,     ///< as kSequence, but a text may stop before any of the parts
    kChoice,    ///< one of its parts
    kLoop,      ///< its only part, one or more times
    kRepeat,    ///< only in grammars, instead of kFront and kLoop: its only part, `least` to `most` times
    kRule,      ///< only in grammars: the texts of rule number `rule`
  };
  static constexpr int kNoLimit = -1;

  Kind kind;
  std::vector<RegexPart> parts = {};
  ByteRange bytes = {};
  int least = 0, most = 0, rule = 0;
};

/// Reads these forms; sets may contain any Unicode character:
///
///     ab   a|b   (a)   (?:a)        one after another, one of them, a group
///     a*   a+   a?   a{2}   a{2,}   a{2,5}
///     é   \.   \n   \r   \t          a character
///     .   [a-z_]   [^"]             all but a line feed; a set; all but a set
///     \d \w \s   \D \W \S          sets of ASCII, and all but these
///
/// The tree contains neither counts nor characters: `a{2,5}` becomes `aa` and a kFront of three `a`, and a
/// character becomes the sequence of its bytes in UTF-8. Throws UsageError with the place for every other
/// form, such as `\b`, `^`, `a*?`, `(?=a)` and `[z-a]`. Also throws UsageError for a pattern that is not
/// valid UTF-8, has more than 50,000 parts, or nests more than 100 groups.
RegexPart parse_regex(std::string_view pattern);

/// Reads the `pattern` of a JSON Schema for a grammar of JSON. The result describes the text between the
/// quotation marks of a string in which the pattern matches somewhere, or only at the ends that ^ and $ name.
/// Repetitions are kRepeat, and `any` describes any character of a string. A character of a set has one form:
/// itself, or its shortest escape if JSON needs one. `\s` and `.` have ECMAScript's meaning. Also reads `a*?`
/// and \u00e9 \x41 \f \v.
RegexPart parse_json_pattern(std::string_view pattern, const RegexPart& any);

}  // namespace staircase
