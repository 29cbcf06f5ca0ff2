#include "common/text/grammar_rules.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/error.h"

namespace staircase {

namespace {

using Kind = RegexPart::Kind;

/// Whether a property holds for a part. It holds for a sequence if it holds for all its parts, and for a
/// choice if it holds for one of them. It holds for a repetition that may be left out, or whose part has the
/// property.
bool holds(const RegexPart& part, bool byte_holds, const std::vector<bool>& rule_holds) {
  const auto one_holds = [&](const RegexPart& one) { return holds(one, byte_holds, rule_holds); };
  switch (part.kind) {
    case Kind::kByte:
      return byte_holds;
    case Kind::kRule:
      return rule_holds[part.rule];
    case Kind::kChoice:
      return std::ranges::any_of(part.parts, one_holds);
    case Kind::kRepeat:
      return part.least == 0 || one_holds(part.parts[0]);
    default:
      return std::ranges::all_of(part.parts, one_holds);
  }
}

void add_rules(const RegexPart& part, std::vector<int>& rules) {
  if (part.kind == Kind::kRule) rules.push_back(part.rule);
  for (const RegexPart& one : part.parts) add_rules(one, rules);
}

/// Returns for each rule whether the property holds. In the smallest solution, a rule that holds only if it
/// holds itself does not hold.
std::vector<bool> rules_that_hold(const GrammarRules& rules, bool byte_holds) {
  const int count = static_cast<int>(rules.size());
  std::vector<std::vector<int>> users(count);
  std::vector<int> todo(count);
  for (int i = 0; i < count; ++i) {
    std::vector<int> used;
    add_rules(rules[i].part, used);
    for (const int rule : used) users[rule].push_back(i);
    todo[i] = i;
  }
  std::vector<bool> known(count, false);
  while (!todo.empty()) {
    const int rule = todo.back();
    todo.pop_back();
    if (known[rule] || !holds(rules[rule].part, byte_holds, known)) continue;
    known[rule] = true;
    todo.insert(todo.end(), users[rule].begin(), users[rule].end());
  }
  return known;
}

/// Adds to `rules` the rules with which a part may begin.
void add_first_rules(const RegexPart& part, const std::vector<bool>& may_be_empty, std::vector<int>& rules) {
  if (part.kind == Kind::kRule) rules.push_back(part.rule);
  for (const RegexPart& one : part.parts) {
    add_first_rules(one, may_be_empty, rules);
    if (part.kind == Kind::kSequence && !holds(one, false, may_be_empty)) return;
  }
}

/// Removes the parts that match no finite text, from a part that matches one.
void keep_finite(RegexPart& part, const std::vector<bool>& is_finite) {
  const auto is_endless = [&](const RegexPart& one) { return !holds(one, true, is_finite); };
  if (part.kind == Kind::kChoice) std::erase_if(part.parts, is_endless);
  if (part.kind == Kind::kRepeat && is_endless(part.parts[0])) part = {Kind::kSequence};
  for (RegexPart& one : part.parts) keep_finite(one, is_finite);
}

}  // namespace

void refuse_left_recursion(const GrammarRules& rules) {
  const std::vector<bool> may_be_empty = rules_that_hold(rules, false);
  std::vector<std::vector<int>> firsts(rules.size());
  for (std::size_t i = 0; i < rules.size(); ++i) add_first_rules(rules[i].part, may_be_empty, firsts[i]);
  enum class State { kNew, kOpen, kDone };
  std::vector<State> states(rules.size(), State::kNew);
  std::vector<std::pair<int, std::size_t>> path;  // open rules, and how many of their first rules are done
  for (int start = 0; start < std::ssize(rules); ++start) {
    if (states[start] == State::kNew) path.emplace_back(start, 0);
    while (!path.empty()) {
      const int rule = path.back().first;
      states[rule] = State::kOpen;
      if (path.back().second == firsts[rule].size()) {
        states[rule] = State::kDone;
        path.pop_back();
        continue;
      }
      const int next = firsts[rule][path.back().second++];
      if (states[next] == State::kOpen) {
        throw UsageError(
            "the rule {} begins with itself{}; write a ::= b (\"+\" b)* instead of a ::= b | a \"+\" b",
            rules[next].name, next == rule ? "" : ", by way of " + rules[rule].name);
      }
      if (states[next] == State::kNew) path.emplace_back(next, 0);
    }
  }
}

bool keep_finite(GrammarRules& rules) {
  const std::vector<bool> is_finite = rules_that_hold(rules, true);
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (is_finite[i])
      keep_finite(rules[i].part, is_finite);
    else
      rules[i].part = {Kind::kChoice};
  }
  return is_finite[0];
}

void mark_borders(const RegexPart& part, std::array<bool, 257>& borders) {
  if (part.kind == Kind::kByte) borders[part.bytes.first] = borders[part.bytes.last + 1] = true;
  for (const RegexPart& one : part.parts) mark_borders(one, borders);
}

}  // namespace staircase
