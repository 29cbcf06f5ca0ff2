// The vocabulary in the form that constraints use: the trie of step 102 in one array, and the tokens that are
// plain text within a JSON string.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "common/model/config.h"
#include "common/text/tokenizer.h"

namespace staircase {

/// A set of tokens, a bit each: token t is bit t % 64 of word t / 64. [(vocab_size + 63) / 64]
using TokenBits = std::vector<std::uint64_t>;

/// A set of characters: each ASCII character by itself, and all others together.
class CharacterSet {
 public:
  /// Adds a code point.
  void add(std::uint32_t character) {
    if (character < 128)
      ascii_[character / 64] |= std::uint64_t(1) << character % 64;
    else
      others_ |= kCharacters;
  }
  /// Adds bytes that form no whole character.
  void add_broken() { others_ |= kBroken; }
  void add(const CharacterSet& set) {
    for (int i = 0; i < 2; ++i) ascii_[i] |= set.ascii_[i];
    others_ |= set.others_;
  }
  bool has_all_of(const CharacterSet& set) const {
    return (set.ascii_[0] & ~ascii_[0]) == 0 && (set.ascii_[1] & ~ascii_[1]) == 0 &&
           (set.others_ & ~others_) == 0;
  }
  auto operator<=>(const CharacterSet&) const = default;

 private:
  enum : std::uint8_t { kCharacters = 1, kBroken = 2 };
  std::uint64_t ascii_[2] = {};  // std::array has no <=> in the libc++ of Emscripten
  std::uint8_t others_ = 0;
};

/// Tokens that begin alike share a path. A node is followed by all nodes below it:
///
///     a, an, and, at    nodes a n d t: three below a, one below n
class FlatTrie {
 public:
  using Token = std::pair<std::string_view, int>;  // its bytes, at least one, and its id

  explicit FlatTrie(std::vector<Token> tokens);

  /// Finds the tokens whose bytes lead to a state. next(state, byte) returns the state that a byte leads to;
  /// if it is negative, all tokens that continue there are skipped. If takes_all(state, before, characters,
  /// bytes) holds, all of them are found without further calls: they continue with these characters, for up
  /// to that many bytes. `before` is the state one byte earlier. Calls found(first, end) for the tokens first
  /// .. end - 1 in the order of their bytes.
  template <typename Next, typename TakesAll, typename Found>
  void walk(int state, const Next& next, const TakesAll& takes_all, const Found& found) const {
    std::vector<int> path(depth_ + 1, state);  // the states after 0, 1, 2 … bytes
    for (std::size_t i = 0; i + 1 < nodes_.size();) {
      const Node& node = nodes_[i];
      const int here = next(path[node.depth], node.byte);
      if (here < 0) {
        i = node.end;
        continue;
      }
      const std::size_t end =
          takes_all(here, path[node.depth], sets_[node.set], node.below) ? node.end : i + 1;
      if (node.first < nodes_[end].first) found(node.first, nodes_[end].first);
      path[node.depth + 1] = here;
      i = end;
    }
  }

  /// The tokens in the order of their bytes.
  std::span<const std::uint32_t> ids() const { return ids_; }

  /// Bytes of the longest token.
  std::size_t depth() const { return depth_; }

  /// All characters.
  const CharacterSet& characters() const { return characters_; }

 private:
  struct Node {
    char byte;            // the byte that leads here
    std::uint32_t depth;  // number of bytes before it
    std::uint32_t first;  // index in ids_ of the tokens that end here, up to the next node's first
    std::uint32_t end;    // the first node that is not below this one
    std::uint32_t below;  // bytes of the longest continuation from here
    std::uint32_t set;    // index in sets_ of the characters of all continuations
  };
  void add_characters(std::string_view bytes, const std::vector<std::size_t>& nodes,
                      std::vector<CharacterSet>& sets, std::vector<bool>& ends_character);

  std::vector<Node> nodes_ = {};  // and a last one that marks the end
  std::vector<std::uint32_t> ids_ = {};
  std::vector<CharacterSet> sets_ = {};
  std::size_t depth_ = 0;
  CharacterSet characters_ = {};
};

/// The tokens that can be part of a constrained text: all except end-of-text tokens and special tokens, whose
/// names are not text. Built once for a model; the tokenizer must outlive it.
struct SortedTokens {
  /// The special tokens in `written` count as text.
  SortedTokens(const Tokenizer& tokenizer, EndTokens ends, const std::vector<int>& written = {});

  /// Whether a token consists of whole characters that need no escape in a JSON string. Most states that
  /// allow one plain token allow all of them.
  static bool is_plain(std::string_view bytes);

  /// Bytes of the longest token.
  std::size_t depth() const { return std::max(plain.depth(), others.depth()); }

  const Tokenizer* tokenizer;
  EndTokens ends;
  FlatTrie plain, others;
  TokenBits plain_bits;
};

}  // namespace staircase
