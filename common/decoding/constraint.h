// Masks for texts that must match a pattern or follow a grammar, fast enough for a server: tables of what the
// automata of steps 101 and 103 have answered before.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/config.h"
#include "common/text/grammar_rules.h"
#include "common/text/tokenizer.h"

namespace staircase {

/// The tokens that can be part of a constrained text, in the order of their bytes: tokens that begin alike
/// stand together, as in the trie of step 102. Built once for a model; the tokenizer must outlive it.
struct SortedTokens {
  struct Entry {
    std::string_view bytes;
    int token;
    std::size_t shared;  ///< bytes at its beginning that the entry before it has, too
  };

  /// Without special tokens, whose names are no text, and without those that end one.
  SortedTokens(const Tokenizer& tokenizer, EndTokens ends);

  const Tokenizer* tokenizer;
  EndTokens ends;
  std::vector<Entry> entries = {};
};

/// What texts must look like. All rows with the same constraint share one, in one thread at a time.
///
/// A state of the table is a set of the automaton's states. The states that a byte leads to, and the tokens
/// that a state allows, are computed once and kept; when the table is full, it begins anew. Work is bounded:
/// a constraint that is in too many states at once, or takes more than `kMostTime` of a processor for one
/// text, throws.
class Constraint {
 public:
  static constexpr std::size_t kMaxParts = 100'000, kMaxAtOnce = 2'000, kMaxStates = 8'192;
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

  /// How much of a text was read. A new one is for a new text.
  struct Place {
    int generation = -1, state = 0;
    std::size_t read = 0;                // tokens
    std::chrono::nanoseconds time = {};  // that the masks after this text took
  };

  /// Masks the logits, [vocab_size], of the tokens after which `text`, the new tokens so far, can no longer
  /// become a valid one. From one call to the next, the text of a place must only grow. Throws Error if no
  /// token is left, and if the work is too much.
  void keep_allowed(std::span<float> logits, std::span<const int> text, Place& place);

 private:
  using States = std::set<int>;

  /// Regex or Grammar.
  struct Automaton {
    std::function<States()> start;
    std::function<States(const States& states, std::string_view text)> after;
    std::function<bool(const States& states)> accepts;
  };
  struct State {
    const States* states;                     // of the automaton
    std::vector<std::uint64_t> allowed = {};  // a bit for each token; none if they are not known
  };
  static constexpr int kDead = -1, kUnknown = -2;

  /// `parts` have all bytes that the automaton tells apart.
  Constraint(std::function<Automaton()> make, const GrammarRules& parts,
             std::shared_ptr<const SortedTokens> tokens);
  template <typename Made>
  static Automaton automaton(std::shared_ptr<const Made> made);

  void begin_anew();
  int number_of(States states);
  int after(int state, char byte);
  const std::vector<std::uint64_t>& allowed(int state, std::size_t vocab_size);
  void apply(std::span<float> logits, std::span<const int> text, Place& place);

  std::function<Automaton()> make_;
  std::array<std::size_t, 256> class_of_ = {};  // of a byte: those of a class lead to the same states
  std::size_t classes_ = 0;
  std::shared_ptr<const SortedTokens> tokens_;
  Automaton automaton_ = {};
  std::deque<State> table_ = {};
  std::vector<int> next_ = {};  // [states, classes]: a state, kDead or kUnknown
  std::map<States, int> numbers_ = {};
  int generation_ = -1;  // of the table
  bool is_used_ = false;
  std::size_t mask_bytes_ = 0;
  std::chrono::nanoseconds latest_end_ = {};  // of the present call, in this thread's processor time
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
