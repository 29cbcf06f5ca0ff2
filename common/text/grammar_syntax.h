// Reads grammars in GBNF, the form of llama.cpp.
#pragma once

#include <string>
#include <string_view>

#include "common/text/grammar_rules.h"

namespace staircase {

/// Reads rules, one of which is `root`; it comes first in what is returned:
///
///     root ::= "a" item ("," item)*   # a text in quotes, a rule, a group
///     item ::= [0-9]{1,3} | .         # characters of a set and their count; any character
///       | [^"\n] | "\x41\u00e9"       # all but a set; escapes: \n \r \t \" \\ \[ \] \x41 \u00e9 \U0001f98a
///
/// A rule ends with its line, except in a group and after | and ::=. Throws UsageError with line and column
/// for what cannot be read. Also for a rule that is missing or there twice. A rule that begins with itself
/// is refused, and so is a grammar that no finite text follows. There are at most 50,000 parts and 100 groups
/// in one another, and a count is at most 50,000.
GrammarRules parse_grammar(std::string_view text);

/// Reads a file with such rules; without a name, there are none. Throws also what read_file throws.
GrammarRules read_grammar(const std::string& file);

}  // namespace staircase
