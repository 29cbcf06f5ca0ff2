// Computes the texts that several patterns all describe, as rules of a grammar.
#pragma once

#include <optional>
#include <vector>

#include "common/text/grammar_rules.h"

namespace staircase {

/// Adds rules for the texts that all `wanted` parts describe and no `unwanted` part does. Returns the first
/// of these rules as a part; nothing if there is no such text. The given parts must not contain kRule. Each
/// joint state of their automata becomes a rule (Rabin and Scott 1959, section 6). Throws Error for more than
/// 5,000 rules.
std::optional<RegexPart> intersection(const std::vector<RegexPart>& wanted,
                                      const std::vector<RegexPart>& unwanted, GrammarRules& rules);

}  // namespace staircase
