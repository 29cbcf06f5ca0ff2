// The rules of a grammar, and what must be known of them before an automaton can use them.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "common/text/regex_syntax.h"

namespace staircase {

struct GrammarRule {
  std::string name;
  RegexPart part;
};

/// The first one describes whole texts; kRule parts are indices. There are no fronts and no loops.
using GrammarRules = std::vector<GrammarRule>;

/// Throws UsageError if a rule begins with itself, such as `sum ::= sum "+" number`: a stack would grow
/// without reading a byte.
void refuse_left_recursion(const GrammarRules& rules);

/// Takes out all that no finite text follows, such as `list` in `list ::= "a" list`. Then each text that an
/// automaton has begun can be finished. Returns false if nothing is left of the first rule.
bool keep_finite(GrammarRules& rules);

/// Marks each byte at which a range of the part begins, and the byte after its last one. Bytes without a mark
/// between them are the same to all automata of the part.
void mark_borders(const RegexPart& part, std::array<bool, 257>& borders);

}  // namespace staircase
