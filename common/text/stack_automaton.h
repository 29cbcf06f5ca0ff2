// The automaton of step 103 for a server: what a part of the grammar can read is found once for all stacks
// that have it on top.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/text/grammar_rules.h"

namespace staircase {

/// Reads texts of a grammar, and of patterns (parse_regex), byte by byte. Equal stacks have one number.
class StackAutomaton {
 public:
  static constexpr std::size_t kMaxStacks = 200'000, kMaxAtOnce = 2'000;

  /// The stacks that it may have after a part of a text: sorted, each once. Rules, choices and repetitions on
  /// top are not opened, so there is mostly one stack. Without any, no text that begins so is valid.
  using Stacks = std::vector<int>;

  /// The stack with nothing on it, after a whole text.
  static constexpr int kEmpty = 0;

  /// The first rule describes whole texts.
  explicit StackAutomaton(std::shared_ptr<const GrammarRules> rules) : rules_(std::move(rules)) {}

  Stacks start() { return start(rules_->front().part); }

  /// For texts of another part, which must outlive this.
  Stacks start(const RegexPart& part) { return {push(part, 0, kEmpty)}; }

  /// Throws Error if it needs more than kMaxStacks, or kMaxAtOnce for one state.
  Stacks after(const Stacks& stacks, char byte);

  /// The part that a stack reads next: a repetition, or a rule that may end with itself.
  struct Next {
    const RegexPart* part;
    const RegexPart* repeats;  ///< what a repetition repeats, which others may, too; otherwise the part
    int alone;                 ///< a stack that holds only this part
    std::size_t left;          ///< the most rounds of a repetition from here
  };
  Next next(int stack);

  /// Whether the stack reads that part anew and nothing else: a repetition after any number of rounds.
  bool is_back_at(int stack, const Next& part) const;

  /// A stack that reads just the same `bytes` bytes or fewer. In counted repetitions whose limits are farther
  /// away it stands nearer to them, so stacks with other counts have the same.
  int near_limits(int stack, int bytes);

  /// Whether the text is valid as a whole.
  bool accepts(const Stacks& stacks);

 private:
  static constexpr int kUnknown = -1;

  struct Stack {
    const RegexPart* top;
    int done, below;  // how much of the top is done, and the stack below it

    bool operator==(const Stack&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Stack& stack) const {
      const auto parts = reinterpret_cast<std::uintptr_t>(stack.top) / sizeof(RegexPart);
      return (parts * 31 + static_cast<std::size_t>(stack.done)) * 0x9E3779B97F4A7C15u +
             static_cast<std::size_t>(stack.below);
    }
  };

  /// What a stack can read without those below: `{"a" | [0-9]+}` reads an a, which leaves nothing of it, or a
  /// digit, which leaves a repetition.
  struct Front {
    struct Step {
      ByteRange bytes;
      int left;  // as a stack on nothing
    };
    std::vector<Step> steps;
    bool may_be_empty;  // so the stack below may read
  };

  const RegexPart& opened(const RegexPart& part) const;
  int top(int stack);
  int push(const RegexPart& top, int done, int below);
  int put_on(int stack, int below);
  const Front& front_of(int stack);
  Front find_front(int alone);

  std::shared_ptr<const GrammarRules> rules_;
  std::vector<Stack> stacks_ = {{nullptr, 0, kEmpty}};
  std::vector<int> fronts_of_ = {kUnknown};  // of each stack, in fronts_
  std::deque<Front> fronts_ = {};            // of parts on nothing
  std::unordered_map<Stack, int, Hash> numbers_ = {};
};

}  // namespace staircase
