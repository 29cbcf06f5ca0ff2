// A regular expression as an automaton that reads a text byte by byte.
#pragma once

#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "allowed_tokens.h"
#include "common/text/regex_syntax.h"

namespace staircase {

struct RegexOptions {
  std::string regex = {};  ///< empty: any text is valid
};

inline void add_options(OptionSink& sink, RegexOptions& options, const RowOptions& row) {
  sink.add("--regex", Path{&options.regex, "PATTERN"}, "a regular expression that the answer must match");
  sink.rule([&options] { parse_regex(options.regex); });
  require_an_end(sink, "--regex", row, [&options] { return !options.regex.empty(); });
}

/// A nondeterministic finite automaton (Thompson 1968).
class Regex {
 public:
  /// The states that the automaton may be in after a part of a text. Empty if no matching text begins so.
  using States = std::set<int>;

  explicit Regex(std::string_view pattern) : last_(add(parse_regex(pattern), 0)) {}

  States start() const {
    States states;
    enter(0, states);
    return states;
  }

  /// The states after reading more bytes.
  States after(States states, std::string_view text) const {
    for (const char byte : text) {
      States next;
      for (const int state : states)
        for (const auto& [bytes, to] : states_[state].steps)
          if (bytes.holds(byte)) enter(to, next);
      states = std::move(next);
    }
    return states;
  }

  /// Whether the text matches as a whole.
  bool accepts(const States& states) const { return states.contains(last_); }

 private:
  struct State {
    std::vector<std::pair<ByteRange, int>> steps = {};  // to another state, reading a byte
    std::vector<int> free = {};                         // to states that are entered with this one
  };

  void enter(int state, States& states) const {
    if (!states.insert(state).second) return;
    for (const int other : states_[state].free) enter(other, states);
  }

  /// Adds transitions for a part's texts, from the state `from` to the state that it returns. None leads back
  /// to `from`, where other parts may also begin.
  int add(const RegexPart& part, int from) {
    using Kind = RegexPart::Kind;
    if (part.kind == Kind::kSequence) {
      for (const RegexPart& next : part.parts) from = add(next, from);
      return from;
    }
    const int state = static_cast<int>(states_.size());
    states_.emplace_back();
    if (part.kind == Kind::kByte) states_[from].steps.emplace_back(part.bytes, state);
    if (part.kind == Kind::kChoice)
      for (const RegexPart& one : part.parts) states_[add(one, from)].free.push_back(state);
    if (part.kind == Kind::kFront) {
      for (const RegexPart& next : part.parts) {
        states_[from].free.push_back(state);
        from = add(next, from);
      }
      states_[from].free.push_back(state);
    }
    if (part.kind != Kind::kLoop) return state;
    const int end = add(part.parts[0], state);
    states_[from].free.push_back(state);
    states_[end].free.push_back(state);
    return end;
  }

  std::vector<State> states_ = {State()};
  int last_;
};

}  // namespace staircase
