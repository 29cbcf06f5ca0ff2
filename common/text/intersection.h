// The texts that several patterns describe together, as rules of a grammar.
#pragma once

#include <optional>
#include <vector>

#include "common/text/grammar_rules.h"

namespace staircase {

/// Adds rules for the texts that all `wanted` parts describe, and none of `unwanted`, and returns the first
/// one as a part; nothing if there is no such text. The parts have no kRule. Each state of all their automata
/// together becomes a rule (Rabin and Scott 1959, section 6). Throws Error for more than 5,000 of them.
std::optional<RegexPart> intersection(const std::vector<RegexPart>& wanted,
                                      const std::vector<RegexPart>& unwanted, GrammarRules& rules);

}  // namespace staircase
