#include "common/text/intersection.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "common/base/error.h"
#include "common/text/stack_automaton.h"

namespace staircase {

namespace {

using Kind = RegexPart::Kind;

constexpr std::size_t kMaxRules = 5'000;

RegexPart rule_part(std::size_t rule) {
  RegexPart part{Kind::kRule};
  part.rule = static_cast<int>(rule);
  return part;
}

/// Adds `by` to the number of every rule that a part names.
void shift(RegexPart& part, std::size_t by) {
  if (part.kind == Kind::kRule) part.rule += static_cast<int>(by);
  for (RegexPart& one : part.parts) shift(one, by);
}

/// All automata, which read the same bytes in step.
class Together {
 public:
  using State = std::vector<StackAutomaton::Stacks>;

  Together(const std::vector<RegexPart>& wanted, const std::vector<RegexPart>& unwanted)
      : wanted_(wanted.size()), automaton_(std::make_shared<const GrammarRules>()) {
    for (const std::vector<RegexPart>* parts : {&wanted, &unwanted})
      for (const RegexPart& part : *parts) {
        mark_borders(part, borders_);
        start_.push_back(automaton_.start(part));
      }
    borders_[0] = true;
  }

  /// The rules of the first state and of all states that follow it.
  GrammarRules rules() {
    number_of(start_);
    for (std::size_t done = 0; done < states_.size(); ++done) rules_[done].part = part_of(states_[done]);
    return std::move(rules_);
  }

 private:
  std::size_t number_of(const State& state) {
    const auto [known, is_new] = numbers_.try_emplace(state, states_.size());
    if (is_new) {
      if (states_.size() == kMaxRules) throw Error("together they become more than {} rules", kMaxRules);
      states_.push_back(state);
      rules_.push_back({"text", {Kind::kChoice}});
    }
    return known->second;
  }

  RegexPart part_of(const State& state) {
    RegexPart part{Kind::kChoice};
    if (accepts(state)) part.parts.push_back({Kind::kSequence});
    for (std::size_t first = 0, end = 0; first < 256; first = end) {
      for (end = first + 1; !borders_[end] && end < 256;) ++end;
      State next;
      for (const StackAutomaton::Stacks& stacks : state)
        next.push_back(automaton_.after(stacks, static_cast<char>(first)));
      if (std::any_of(next.begin(), next.begin() + wanted_,
                      [](const auto& stacks) { return stacks.empty(); }))
        continue;
      RegexPart bytes{Kind::kByte};
      bytes.bytes = {static_cast<unsigned char>(first), static_cast<unsigned char>(end - 1)};
      part.parts.push_back({Kind::kSequence, {bytes, rule_part(number_of(next))}});
    }
    return part;
  }

  bool accepts(const State& state) {
    for (std::size_t i = 0; i < state.size(); ++i)
      if (automaton_.accepts(state[i]) != (static_cast<std::ptrdiff_t>(i) < wanted_)) return false;
    return true;
  }

  const std::ptrdiff_t wanted_;
  StackAutomaton automaton_;
  std::array<bool, 257> borders_ = {};
  State start_ = {};
  std::deque<State> states_ = {};
  std::map<State, std::size_t> numbers_ = {};
  GrammarRules rules_ = {};
};

}  // namespace

std::optional<RegexPart> intersection(const std::vector<RegexPart>& wanted,
                                      const std::vector<RegexPart>& unwanted, GrammarRules& rules) {
  GrammarRules found = Together(wanted, unwanted).rules();
  if (!keep_finite(found)) return std::nullopt;
  const std::size_t first = rules.size();
  for (GrammarRule& rule : found) {
    shift(rule.part, first);
    rules.push_back(std::move(rule));
  }
  return rule_part(first);
}

}  // namespace staircase
