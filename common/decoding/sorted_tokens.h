// The vocabulary as constraints walk through it: the trie of step 102 in one array, and the tokens that are
// plain text within a JSON string.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "common/model/config.h"
#include "common/text/tokenizer.h"

namespace staircase {

/// A set of tokens, a bit each: token t is bit t % 64 of word t / 64. [(vocab_size + 63) / 64]
using TokenBits = std::vector<std::uint64_t>;

/// Tokens that begin alike share a path. A node is followed by all that are below it:
///
///     a, an, and, at    nodes a n d t: three below a, one below n
class FlatTrie {
 public:
  using Token = std::pair<std::string_view, int>;  // its bytes, at least one, and its id

  explicit FlatTrie(std::vector<Token> tokens);

  /// Sets the bits of the tokens whose bytes lead somewhere. next(state, byte) is the state that a byte leads
  /// to, or a negative number: all tokens that go on there are passed over.
  template <typename Next>
  void walk(int state, const Next& next, TokenBits& bits) const {
    std::vector<int> path(depth_ + 1, state);  // the states after 0, 1, 2 … bytes
    for (std::size_t i = 0; i + 1 < nodes_.size();) {
      const Node& node = nodes_[i];
      const int here = next(path[node.depth], node.byte);
      if (here < 0) {
        i = node.end;
        continue;
      }
      path[node.depth + 1] = here;
      for (std::size_t k = node.first; k < nodes_[i + 1].first; ++k)
        bits[ids_[k] / 64] |= std::uint64_t(1) << ids_[k] % 64;
      ++i;
    }
  }

  /// Bytes of the longest token.
  std::size_t depth() const { return depth_; }

 private:
  struct Node {
    char byte;          // which leads here
    std::size_t depth;  // bytes before it
    std::size_t first;  // of the tokens that end here, in ids_; they are those before the next node's
    std::size_t end;    // the first node that is not below this one
  };
  std::vector<Node> nodes_ = {};  // and one more, where all ends
  std::vector<std::size_t> ids_ = {};
  std::size_t depth_ = 0;
};

/// The tokens that can be part of a constrained text: without special tokens, whose names are no text, and
/// without those that end one. Built once for a model; the tokenizer must outlive it.
struct SortedTokens {
  SortedTokens(const Tokenizer& tokenizer, EndTokens ends);

  /// A plain token has whole characters which stand for themselves in a JSON string, and at most
  /// kMaxPlainBytes. Most states that allow one allow all.
  static constexpr std::size_t kMaxPlainBytes = 16;
  static bool is_plain(std::string_view bytes);

  const Tokenizer* tokenizer;
  EndTokens ends;
  FlatTrie all, others;  ///< others than the plain ones
  TokenBits plain;
};

}  // namespace staircase
