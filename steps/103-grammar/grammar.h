// A grammar as an automaton with stacks, which reads a text byte by byte.
#pragma once

#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "allowed_tokens.h"
#include "common/text/grammar_syntax.h"

namespace staircase {

struct GrammarOptions {
  std::string file = {};
  GrammarRules rules = {};  ///< from the file; empty: any text is valid
};

inline void add_options(OptionSink& sink, GrammarOptions& options, const RowOptions& row) {
  sink.add("--grammar", Path{&options.file, "FILE"}, "a grammar in GBNF that the answer must follow");
  sink.rule([&options] { options.rules = read_grammar(options.file); });
  require_an_end(sink, "--grammar", row, [&options] { return !options.file.empty(); });
}

/// A nondeterministic pushdown automaton.
class Grammar {
 public:
  static constexpr int kMaxStacks = 200'000, kMaxAtOnce = 5'000, kEmpty = 0;
  /// The numbers of the stacks that are possible after a part of a text. Empty if no valid text begins so.
  using States = std::set<int>;

  explicit Grammar(const GrammarRules& rules) : rules_(std::make_shared<GrammarRules>(rules)) {}

  States start() const { return opened(push(rules_->front().part, 0, kEmpty)); }

  States after(States stacks, std::string_view text) const {
    for (const char byte : text) {
      States next;
      for (const int stack : stacks)
        if (const auto [top, _, below] = stacks_[stack]; top->bytes.holds(byte))
          next.merge(States(opened(below)));
      if (next.size() > kMaxAtOnce) throw Error("the grammar has over {} stacks at once", kMaxAtOnce);
      stacks = std::move(next);
    }
    return stacks;
  }

  /// Whether the text is valid as a whole.
  bool accepts(const States& stacks) const { return stacks.contains(kEmpty); }

 private:
  /// The part on top, how much of it is done, and the stack below.
  using Stack = std::tuple<const RegexPart*, int, int>;
  using Kind = RegexPart::Kind;

  /// Returns the number of a stack, the same for equal stacks. A finished top is left out.
  int push(const RegexPart& top, int done, int below) const {
    if (top.kind == Kind::kSequence && done == std::ssize(top.parts)) return below;
    if (top.kind == Kind::kRepeat && done == top.most) return below;
    const auto [known, is_new] = numbers_.try_emplace({&top, done, below}, stacks_.size());
    if (is_new) stacks_.push_back(known->first);
    if (stacks_.size() > kMaxStacks) throw Error("the grammar needs over {} stacks", kMaxStacks);
    return known->second;
  }

  /// Expands a stack for reading the next byte: into stacks with a byte on top, and the empty one.
  const States& opened(int stack) const {
    if (opened_.contains(stack)) return opened_[stack];
    States seen, found;
    for (States todo{stack}; !todo.empty();) {
      const int next = todo.extract(todo.begin()).value();
      if (!seen.insert(next).second) continue;
      const auto [top, done, below] = stacks_[next];
      if (top->kind == Kind::kByte) found.insert(next);
      if (top->kind == Kind::kRule) todo.insert(push((*rules_)[top->rule].part, 0, below));
      if (top->kind == Kind::kSequence) todo.insert(push(top->parts[done], 0, push(*top, done + 1, below)));
      if (top->kind == Kind::kChoice)
        for (const RegexPart& one : top->parts) todo.insert(push(one, 0, below));
      if (top->kind != Kind::kRepeat) continue;
      if (done >= top->least) todo.insert(below);
      const int count = done + (done < std::max(top->least, top->most));  // if unlimited, count to the least
      todo.insert(push(top->parts[0], 0, push(*top, count, below)));
    }
    return opened_[stack] = found;
  }

  std::shared_ptr<const GrammarRules> rules_;
  static inline const RegexPart kEnd{Kind::kByte, {}, {1, 0}};  // no byte matches this
  mutable std::vector<Stack> stacks_ = {{&kEnd, 0, kEmpty}};
  mutable std::map<Stack, int> numbers_ = {};
  mutable std::map<int, States> opened_ = {};  // results of opened()
};

}  // namespace staircase
