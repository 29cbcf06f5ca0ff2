// The vocabulary as constraints walk through it: the trie of step 102 in one array, and the tokens that are
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

/// Characters by their kind: each of ASCII, and all others together.
class CharacterSet {
 public:
  /// A code point.
  void add(std::uint32_t character) {
    if (character < 128)
      ascii_[character / 64] |= std::uint64_t(1) << character % 64;
    else
      others_ |= kCharacters;
  }
  /// Bytes that are no whole character.
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

/// Tokens that begin alike share a path. A node is followed by all that are below it:
///
///     a, an, and, at    nodes a n d t: three below a, one below n
class FlatTrie {
 public:
  using Token = std::pair<std::string_view, int>;  // its bytes, at least one, and its id

  explicit FlatTrie(std::vector<Token> tokens);

  /// Finds the tokens whose bytes lead somewhere. next(state, byte) is the state that a byte leads to, or a
  /// negative number: all tokens that go on there are passed over. If takes_all(state, before, characters,
  /// bytes), all of them are found without a look: they go on with these characters, for that number of bytes
  /// at most. `before` was the state a byte earlier. Calls found(first, end) for the tokens first .. end - 1
  /// in the order of their bytes.
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
    char byte;            // which leads here
    std::uint32_t depth;  // bytes before it
    std::uint32_t first;  // of the tokens that end here, in ids_; they are those before the next node's
    std::uint32_t end;    // the first node that is not below this one
    std::uint32_t below;  // bytes of the longest way on from here
    std::uint32_t set;    // of the characters of all ways on, in sets_
  };
  void add_characters(std::string_view bytes, const std::vector<std::size_t>& nodes,
                      std::vector<CharacterSet>& sets, std::vector<bool>& ends_character);

  std::vector<Node> nodes_ = {};  // and one more, where all ends
  std::vector<std::uint32_t> ids_ = {};
  std::vector<CharacterSet> sets_ = {};
  std::size_t depth_ = 0;
  CharacterSet characters_ = {};
};

/// The tokens that can be part of a constrained text: without special tokens, whose names are no text, and
/// without those that end one. Built once for a model; the tokenizer must outlive it.
struct SortedTokens {
  /// The special tokens in `written` are text nevertheless.
  SortedTokens(const Tokenizer& tokenizer, EndTokens ends, const std::vector<int>& written = {});

  /// A plain token has whole characters which stand for themselves in a JSON string. Most states that allow
  /// one allow all.
  static bool is_plain(std::string_view bytes);

  /// Bytes of the longest token.
  std::size_t depth() const { return std::max(plain.depth(), others.depth()); }

  const Tokenizer* tokenizer;
  EndTokens ends;
  FlatTrie plain, others;
  TokenBits plain_bits;
};

}  // namespace staircase
