// Reads grammars in GBNF, the form of llama.cpp.
#pragma once

#include <string>
#include <string_view>

#include "common/text/grammar_rules.h"

namespace staircase {

/// Reads rules, one of which must be `root`; it is the first rule of the result:
///
///     root ::= "a" item ("," item)*   # a text in quotes, a rule, a group
///     item ::= [0-9]{1,3} | .         # characters of a set and their count; any character
///       | [^"\n] | "\x41\u00e9"       # all but a set; escapes: \n \r \t \" \\ \[ \] \x41 \u00e9 \U0001f98a
///
/// A rule ends with its line, except inside a group and after | and ::=. Throws UsageError with line and
/// column for invalid syntax, and for a rule that is missing or defined twice. Also throws UsageError for a
/// rule that begins with itself, and for a grammar that matches no finite text. The limits are 50,000 parts,
/// 100 nested groups, and a count of 50,000.
GrammarRules parse_grammar(std::string_view text);

/// Reads a file with such rules; an empty name returns no rules. Also throws what read_file throws.
GrammarRules read_grammar(const std::string& file);

}  // namespace staircase
