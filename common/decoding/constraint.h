// Masks for texts that must match a pattern or follow a grammar, fast enough for a server: tables cache the
// automaton's answers.
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

/// The rules that a text must follow. Rows with equal rules share one object, in one thread at a time.
///
/// A state of the table is a set of stacks. The states that a byte leads to, and the tokens that a state
/// allows, are computed once and cached; a full table is cleared. Where a state reads the same characters
/// again and again, as within a string, all tokens of these characters are allowed together, without a walk.
///
/// Work is bounded: throws Error if a constraint has too many stacks at once, or needs more than `kMostTime`
/// of processor time for one text.
class Constraint {
 public:
  static constexpr std::size_t kMaxParts = 300'000, kMaxStates = 32'768;
  static constexpr std::size_t kMaxMaskBytes = 8 << 20;
  static constexpr std::chrono::seconds kMostTime{2};

  /// The whole text must match the regular expression, one of the choices, or the grammar. Throws UsageError
  /// for input that cannot be parsed, is too large, or has no text that the tokens can write.
  static std::shared_ptr<Constraint> of_regex(const std::string& pattern,
                                              std::shared_ptr<const SortedTokens> tokens);
  static std::shared_ptr<Constraint> of_choices(const std::vector<std::string>& texts,
                                                std::shared_ptr<const SortedTokens> tokens);
  static std::shared_ptr<Constraint> of_grammar(GrammarRules rules,
                                                std::shared_ptr<const SortedTokens> tokens);

  /// A constraint from the text of a JSON Schema. Throws UsageError as the functions above do.
  static std::shared_ptr<Constraint> of_json_schema(std::string_view schema,
                                                    std::shared_ptr<const SortedTokens> tokens);

  /// The grammar of the texts.
  const GrammarRules& rules() const { return *rules_; }

  /// How far a text has been read. Each new text needs its own place.
  struct Place {
    int generation = -1, state = 0;
    std::size_t read = 0;                // tokens read so far
    std::chrono::nanoseconds time = {};  // spent on the masks of this text
  };

  /// The tokens after which `text`, the new tokens so far, can still become valid. The result holds until the
  /// next call. From call to call, the text of a place may only grow. Throws Error if no token is allowed, or
  /// if the work exceeds its limit.
  const TokenBits& allowed(std::span<const int> text, Place& place);

  /// Masks the logits, [vocab_size], of all tokens that are not allowed.
  void keep_allowed(std::span<float> logits, std::span<const int> text, Place& place);

 private:
  /// Characters that may follow in any order, up to `bytes` bytes in total.
  struct Loop {
    CharacterSet characters = {};
    std::size_t bytes = 0;
  };
  struct State {
    const StackAutomaton::Stacks* stacks;
    TokenBits allowed = {};  // empty until computed
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
  std::array<std::size_t, 256> class_of_ = {};  // bytes of one class lead to the same states
  std::size_t classes_ = 0;
  // The UTF-8 forms of characters beyond ASCII: for each byte of a form, one byte of every class that it may
  // have.
  std::vector<std::vector<std::string>> beyond_ascii_;
  std::shared_ptr<const SortedTokens> tokens_;
  std::deque<State> table_ = {};
  std::vector<int> next_ = {};  // [states, classes]: a state, kDead or kUnknown
  std::unordered_map<StackAutomaton::Stacks, int, Hash> numbers_ = {};
  // Keyed by a repeated part and true, or by any other part and false.
  std::map<std::pair<const RegexPart*, bool>, CharacterSet> back_ = {};
  int generation_ = -1;  // counts how often the table was cleared
  bool is_used_ = false;
  std::size_t mask_bytes_ = 0, steps_ = 0;
  // Processor time of this thread: what is left for the current text, and when the call's first work began.
  std::chrono::nanoseconds left_ = {};
  std::optional<std::chrono::nanoseconds> start_ = {};
};

/// Calls Constraint::keep_allowed for one row. Each row needs its own copy.
struct KeepConstraint {
  std::shared_ptr<Constraint> constraint;
  Constraint::Place place = {};

  void operator()(std::span<float> logits, std::span<const int> text) {
    constraint->keep_allowed(logits, text, place);
  }
};

}  // namespace staircase
