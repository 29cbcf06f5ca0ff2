// The rules of a grammar, and the checks that they need before an automaton can use them.
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

/// The first rule describes whole texts; kRule parts contain indices of rules. The rules have no kFront and
/// no kLoop parts.
using GrammarRules = std::vector<GrammarRule>;

/// Throws UsageError if a rule begins with itself, such as `sum ::= sum "+" number`: a stack would grow
/// without reading a byte.
void refuse_left_recursion(const GrammarRules& rules);

/// Removes everything that matches no finite text, such as `list` in `list ::= "a" list`. Afterwards, every
/// text that an automaton has begun can be finished. Returns false if nothing remains of the first rule.
bool keep_finite(GrammarRules& rules);

/// Marks the first byte of every range in the part, and the byte after its last one. Automata of the part
/// treat all bytes between two marks alike.
void mark_borders(const RegexPart& part, std::array<bool, 257>& borders);

}  // namespace staircase
