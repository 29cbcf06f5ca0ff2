// The automaton of step 103, made faster for a server: it computes what a part of the grammar can read once
// for all stacks with this part on top.
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

/// Reads the texts of a grammar, or of patterns (parse_regex), byte by byte. Equal stacks have the same
/// number.
class StackAutomaton {
 public:
  static constexpr std::size_t kMaxStacks = 200'000, kMaxAtOnce = 2'000;

  /// All stacks that are possible after a part of a text: sorted, each once. Rules, choices and repetitions
  /// on top are not opened, so there is usually one stack. Without a stack, no text that begins like this is
  /// valid.
  using Stacks = std::vector<int>;

  /// The empty stack, which remains after a whole text.
  static constexpr int kEmpty = 0;

  /// The first rule describes whole texts.
  explicit StackAutomaton(std::shared_ptr<const GrammarRules> rules) : rules_(std::move(rules)) {}

  Stacks start() { return start(rules_->front().part); }

  /// Starts with the texts of another part, which must outlive this object.
  Stacks start(const RegexPart& part) { return {push(part, 0, kEmpty)}; }

  /// Returns the stacks after one more byte. Throws Error for more than kMaxStacks stacks in total, or
  /// kMaxAtOnce in one result.
  Stacks after(const Stacks& stacks, char byte);

  /// The part that a stack reads next, such as a repetition, or a rule that may end with itself.
  struct Next {
    const RegexPart* part;
    const RegexPart* repeats;  ///< what a repetition repeats, perhaps shared by others; otherwise `part`
    int alone;                 ///< the stack that holds only this part
    std::size_t left;          ///< how many more rounds a repetition allows
  };
  Next next(int stack);

  /// Whether the stack reads only this part, from its beginning; a repetition may be after any number of
  /// rounds.
  bool is_back_at(int stack, const Next& part) const;

  /// Returns a stack that reads the same texts of up to `bytes` bytes. Counts of repetitions that are farther
  /// from their limits are moved closer to them, so stacks with different counts become equal.
  int near_limits(int stack, int bytes);

  /// Whether the text so far is valid as a whole.
  bool accepts(const Stacks& stacks);

 private:
  static constexpr int kUnknown = -1;

  struct Stack {
    const RegexPart* top;
    int done, below;  // how much of the top has been read, and the stack below it

    bool operator==(const Stack&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Stack& stack) const {
      const auto parts = reinterpret_cast<std::uintptr_t>(stack.top) / sizeof(RegexPart);
      return (parts * 31 + static_cast<std::size_t>(stack.done)) * 0x9E3779B97F4A7C15u +
             static_cast<std::size_t>(stack.below);
    }
  };

  /// What a stack can read without the stacks below it. For example, `{"a" | [0-9]+}` reads an a, which
  /// leaves nothing, or a digit, which leaves a repetition.
  struct Front {
    struct Step {
      ByteRange bytes;
      int left;  // what remains, as a stack with nothing below
    };
    std::vector<Step> steps;
    bool may_be_empty;  // whether the stack below may read instead
  };

  const RegexPart& opened(const RegexPart& part) const;
  int top(int stack);
  int push(const RegexPart& top, int done, int below);
  int put_on(int stack, int below);
  const Front& front_of(int stack);
  Front find_front(int alone);

  std::shared_ptr<const GrammarRules> rules_;
  std::vector<Stack> stacks_ = {{nullptr, 0, kEmpty}};
  std::vector<int> fronts_of_ = {kUnknown};  // for each stack, an index in fronts_
  std::deque<Front> fronts_ = {};            // of stacks with nothing below
  std::unordered_map<Stack, int, Hash> numbers_ = {};
};

}  // namespace staircase
