#include "common/text/stack_automaton.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "common/base/error.h"

namespace staircase {

using Kind = RegexPart::Kind;

/// The part that a rule describes. No rule begins with itself, so the recursion ends.
const RegexPart& StackAutomaton::opened(const RegexPart& part) const {
  return part.kind == Kind::kRule ? opened((*rules_)[static_cast<std::size_t>(part.rule)].part) : part;
}

/// Pushes a part. A part with nothing left to read is not pushed. The last part of a sequence replaces the
/// sequence, so a rule that ends with itself returns to the same stack.
int StackAutomaton::push(const RegexPart& top, int done, int below) {
  const bool has_all = top.kind == Kind::kSequence || top.kind == Kind::kFront;
  if (has_all && done == std::ssize(top.parts)) return below;
  if (top.kind == Kind::kSequence && done + 1 == std::ssize(top.parts))
    return push(opened(top.parts.back()), 0, below);
  if (top.kind == Kind::kRepeat && done == top.most) return below;
  const auto [known, is_new] =
      numbers_.try_emplace(Stack{&top, done, below}, static_cast<int>(stacks_.size()));
  if (is_new) {
    if (stacks_.size() == kMaxStacks) throw Error("the constraint needs more than {} stacks", kMaxStacks);
    stacks_.push_back(known->first);
    fronts_of_.push_back(kUnknown);
  }
  return known->second;
}

/// Puts a stack that has nothing below it on another stack.
int StackAutomaton::put_on(int stack, int below) {
  if (stack == kEmpty || below == kEmpty) return stack == kEmpty ? below : stack;
  const auto [top, done, rest] = stacks_[static_cast<std::size_t>(stack)];
  return push(*top, done, put_on(rest, below));
}

const StackAutomaton::Front& StackAutomaton::front_of(int stack) {
  const auto number = static_cast<std::size_t>(stack);
  if (fronts_of_[number] == kUnknown) {
    const int alone = top(stack);
    if (alone == stack) {
      fronts_.push_back(find_front(alone));
      fronts_of_[number] = static_cast<int>(fronts_.size()) - 1;
    } else {
      front_of(alone);
      fronts_of_[number] = fronts_of_[static_cast<std::size_t>(alone)];
    }
  }
  return fronts_[static_cast<std::size_t>(fronts_of_[number])];
}

StackAutomaton::Front StackAutomaton::find_front(int alone) {
  Front front{{}, false};
  std::unordered_set<int> seen;
  for (std::vector<int> todo{alone}; !todo.empty();) {
    const int stack = todo.back();
    todo.pop_back();
    if (!seen.insert(stack).second) continue;
    if (stack == kEmpty) {
      front.may_be_empty = true;
      continue;
    }
    const auto [part, count, below] = stacks_[static_cast<std::size_t>(stack)];
    // Reads a part of it, then the stack that follows.
    const auto read = [&](const RegexPart& one, int after) { todo.push_back(push(one, 0, after)); };
    switch (part->kind) {
      case Kind::kByte:
        front.steps.push_back({part->bytes, below});
        break;
      case Kind::kRule:
        read((*rules_)[static_cast<std::size_t>(part->rule)].part, below);
        break;
      case Kind::kChoice:
        for (const RegexPart& one : part->parts) read(one, below);
        break;
      case Kind::kFront:
        todo.push_back(below);
        [[fallthrough]];
      case Kind::kSequence:
        read(part->parts[static_cast<std::size_t>(count)], push(*part, count + 1, below));
        break;
      case Kind::kLoop:
        if (count == 1) todo.push_back(below);
        read(part->parts[0], push(*part, 1, below));
        break;
      case Kind::kRepeat:
        if (count >= part->least) todo.push_back(below);
        // Without an upper limit, it counts only up to the least.
        read(part->parts[0], push(*part, count + (count < std::max(part->least, part->most)), below));
        break;
    }
  }
  return front;
}

int StackAutomaton::top(int stack) {
  if (stack == kEmpty) return kEmpty;
  const auto& [part, done, below] = stacks_[static_cast<std::size_t>(stack)];
  return push(*part, done, kEmpty);
}

StackAutomaton::Next StackAutomaton::next(int stack) {
  const Stack& top = stacks_[static_cast<std::size_t>(stack)];
  const bool is_sequence = top.top->kind == Kind::kSequence;
  const RegexPart& part = opened(is_sequence ? top.top->parts[static_cast<std::size_t>(top.done)] : *top.top);
  const int rounds = &part == top.top ? top.done : 0;
  const bool is_repetition = part.kind == Kind::kRepeat || part.kind == Kind::kLoop;
  const bool has_limit = part.kind == Kind::kRepeat && part.most != RegexPart::kNoLimit;
  return {&part, is_repetition ? &opened(part.parts[0]) : &part, push(part, rounds, kEmpty),
          has_limit ? static_cast<std::size_t>(part.most - rounds) : SIZE_MAX};
}

bool StackAutomaton::is_back_at(int stack, const Next& part) const {
  const Stack& top = stacks_[static_cast<std::size_t>(stack)];
  const bool is_repetition = part.part != part.repeats;
  return top.top == part.part && top.below == kEmpty && (is_repetition || top.done == 0);
}

StackAutomaton::Stacks StackAutomaton::after(const Stacks& stacks, char byte) {
  Stacks next;
  for (const int stack : stacks) {
    for (int reading = stack; reading != kEmpty;) {
      const Front& front = front_of(reading);
      const int below = stacks_[static_cast<std::size_t>(reading)].below;
      for (const auto& [bytes, left] : front.steps)
        if (bytes.holds(byte)) next.push_back(put_on(left, below));
      reading = front.may_be_empty ? below : kEmpty;
    }
  }
  std::ranges::sort(next);
  next.erase(std::unique(next.begin(), next.end()), next.end());
  if (next.size() > kMaxAtOnce)
    throw Error("the constraint is in {} states at once, but at most {} are followed", next.size(),
                kMaxAtOnce);
  return next;
}

int StackAutomaton::near_limits(int stack, int bytes) {
  if (stack == kEmpty) return kEmpty;
  const auto [part, done, below] = stacks_[static_cast<std::size_t>(stack)];
  int count = done;
  // Each round reads at least one byte, so the count grows by no more than `bytes`.
  if (part->kind == Kind::kRepeat && !front_of(push(part->parts[0], 0, kEmpty)).may_be_empty) {
    if (done < part->least) {
      count = std::max(done, part->least - bytes - 1);
    } else if (part->most != RegexPart::kNoLimit) {
      count = std::max({done, part->least, part->most - bytes - 1});
    }
  }
  return push(*part, count, near_limits(below, bytes));
}

bool StackAutomaton::accepts(const Stacks& stacks) {
  return std::ranges::any_of(stacks, [&](int stack) {
    while (stack != kEmpty) {
      if (!front_of(stack).may_be_empty) return false;
      stack = stacks_[static_cast<std::size_t>(stack)].below;
    }
    return true;
  });
}

}  // namespace staircase
