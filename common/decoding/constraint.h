// Masks for texts that must match a pattern or follow a grammar, fast enough for a server: tables of what its
// automaton has answered before.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/decoding/sorted_tokens.h"
#include "common/text/grammar_rules.h"
#include "common/text/stack_automaton.h"

namespace staircase {

/// What texts must look like. All rows with the same constraint share one, in one thread at a time.
///
/// A state of the table is a set of stacks. The states that a byte leads to, and the tokens that a state
/// allows, are computed once and kept; when the table is full, it begins anew. Where a state reads the same
/// characters again and again, as within a string, all tokens of these characters are allowed together, and
/// the walk passes over them.
///
/// Work is bounded: a constraint that has too many stacks at once, or takes more than `kMostTime` of a
/// processor for one text, throws.
class Constraint {
 public:
  static constexpr std::size_t kMaxParts = 300'000, kMaxStates = 32'768;
  static constexpr std::size_t kMaxMaskBytes = 8 << 20;
  static constexpr std::chrono::seconds kMostTime{2};

  /// A text must match the regular expression, one of the choices, or the grammar, as a whole. They throw
  /// UsageError for what cannot be read, is too large, or has no text that the tokens can write.
  static std::shared_ptr<Constraint> of_regex(const std::string& pattern,
                                              std::shared_ptr<const SortedTokens> tokens);
  static std::shared_ptr<Constraint> of_choices(const std::vector<std::string>& texts,
                                                std::shared_ptr<const SortedTokens> tokens);
  static std::shared_ptr<Constraint> of_grammar(GrammarRules rules,
                                                std::shared_ptr<const SortedTokens> tokens);

  /// The same for a JSON Schema, as text.
  static std::shared_ptr<Constraint> of_json_schema(std::string_view schema,
                                                    std::shared_ptr<const SortedTokens> tokens);

  /// The grammar of the texts.
  const GrammarRules& rules() const { return *rules_; }

  /// How much of a text was read. A new one is for a new text.
  struct Place {
    int generation = -1, state = 0;
    std::size_t read = 0;                // tokens
    std::chrono::nanoseconds time = {};  // that the masks after this text took
  };

  /// The tokens after which `text`, the new tokens so far, can still become a valid one. They hold until the
  /// next call. From one call to the next, the text of a place must only grow. Throws Error if no token is
  /// allowed, and if the work is too much.
  const TokenBits& allowed(std::span<const int> text, Place& place);

  /// Masks the logits, [vocab_size], of all other tokens.
  void keep_allowed(std::span<float> logits, std::span<const int> text, Place& place);

 private:
  /// Characters that may follow in any order, up to that many bytes.
  struct Loop {
    CharacterSet characters = {};
    std::size_t bytes = 0;
  };
  struct State {
    const StackAutomaton::Stacks* stacks;
    TokenBits allowed = {};  // none if they are not known
    std::optional<Loop> loop = {};
  };
  struct Hash {
    std::size_t operator()(const StackAutomaton::Stacks& stacks) const {
      std::size_t hash = stacks.size();
      for (const int stack : stacks) hash = hash * 0x9E3779B97F4A7C15u + static_cast<std::size_t>(stack);
      return hash;
    }
  };
  static constexpr int kDead = -1, kUnknown = -2;

  Constraint(GrammarRules rules, std::shared_ptr<const SortedTokens> tokens);

  void begin_anew();
  int number_of(StackAutomaton::Stacks stacks);
  int after(int state, char byte);
  Loop loop(int state, bool is_back);
  CharacterSet characters_back_to(const StackAutomaton::Next& part);
  TokenBits plain_after(int state);
  const TokenBits& mask(int state);
  const TokenBits& mask_after(std::span<const int> text, Place& place);

  std::shared_ptr<const GrammarRules> rules_;
  StackAutomaton automaton_;
  std::array<std::size_t, 256> class_of_ = {};  // of a byte: those of a class lead to the same states
  std::size_t classes_ = 0;
  // The forms of characters beyond ASCII in UTF-8: for each of their bytes, one of every class that it may
  // have.
  std::vector<std::vector<std::string>> beyond_ascii_;
  std::shared_ptr<const SortedTokens> tokens_;
  std::deque<State> table_ = {};
  std::vector<int> next_ = {};  // [states, classes]: a state, kDead or kUnknown
  std::unordered_map<StackAutomaton::Stacks, int, Hash> numbers_ = {};
  // By what is repeated, or by a part and false.
  std::map<std::pair<const RegexPart*, bool>, CharacterSet> back_ = {};
  int generation_ = -1;  // of the table
  bool is_used_ = false;
  std::size_t mask_bytes_ = 0, steps_ = 0;
  // Of this thread's processor time: what is left for the present text, and when the call's first work began.
  std::chrono::nanoseconds left_ = {};
  std::optional<std::chrono::nanoseconds> start_ = {};
};

/// Constraint::keep_allowed for one row. A copy is for another row.
struct KeepConstraint {
  std::shared_ptr<Constraint> constraint;
  Constraint::Place place = {};

  void operator()(std::span<float> logits, std::span<const int> text) {
    constraint->keep_allowed(logits, text, place);
  }
};

}  // namespace staircase
