// The tokens that each state of an automaton allows: found in one walk through the vocabulary, then cached.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "allowed_tokens.h"

namespace staircase {

/// The vocabulary as a tree: tokens that begin alike share a path.
class TokenTrie {
 public:
  explicit TokenTrie(const Tokenizer& tokenizer) {
    for (int token = 0; token < tokenizer.vocab_size(); ++token) {
      int node = 0;
      for (const char byte : tokenizer.bytes(token)) {
        const auto [child, is_new] = nodes_[node].children.try_emplace(byte, nodes_.size());
        node = child->second;
        if (is_new) nodes_.emplace_back();
      }
      nodes_[node].tokens.push_back(token);
    }
  }

  /// Calls `found` for each token with bytes that `states` allow. A byte that leads to no state rules out its
  /// whole branch (Koo et al. 2024).
  template <typename Allowed, typename Found>
  void walk(const Allowed& allowed, const typename Allowed::States& states, const Found& found,
            int node = 0) const {
    for (const auto& [byte, child] : nodes_[node].children) {
      const auto next = allowed.after(states, std::string_view(&byte, 1));
      if (next.empty()) continue;
      for (const int token : nodes_[child].tokens) found(token);
      walk(allowed, next, found, child);
    }
  }

 private:
  struct Node {
    std::vector<int> tokens = {};  // that end here
    std::map<char, int> children = {};
  };
  std::vector<Node> nodes_ = {Node()};
};

/// The masks that all rows with the same constraint share. The tokenizer must outlive this object.
template <typename Allowed>
struct TokenMasks {
  static constexpr std::size_t kMaxMasks = 1000;  // 12 MB for a vocabulary of 100,000

  Allowed allowed;
  const Tokenizer& tokenizer;
  EndTokens ends;
  TokenTrie trie = TokenTrie(tokenizer);
  std::map<typename Allowed::States, std::vector<bool>> masks = {};

  /// Whether each token may follow a text in these states, [vocab_size].
  const std::vector<bool>& mask(const typename Allowed::States& states) {
    if (const auto known = masks.find(states); known != masks.end()) return known->second;
    if (masks.size() == kMaxMasks) masks.clear();
    std::vector<bool>& mask = masks[states];
    mask.resize(tokenizer.vocab_size());
    trie.walk(allowed, states, [&](int token) { mask[token] = true; });
    for (const int marker : tokenizer.special_tokens()) mask[marker] = false;
    for (const int end : ends) mask[end] = allowed.accepts(states);
    return mask;
  }
};

/// Does what keep_allowed does, for one row. Each row needs its own copy, which has its own state.
template <typename Allowed>
struct KeepAllowed {
  std::shared_ptr<TokenMasks<Allowed>> masks;
  typename Allowed::States states = masks->allowed.start();
  std::size_t read = 0;  // tokens of the text

  /// From one call to the next, `text` may only grow.
  void operator()(std::span<float> logits, std::span<const int> text) {
    for (; read < text.size(); ++read)
      states = masks->allowed.after(states, masks->tokenizer.bytes(text[read]));
    const std::vector<bool>& mask = masks->mask(states);
    if (std::ranges::count(mask, true) == 0)
      throw Error("no token continues {} to an allowed text", in_json(masks->tokenizer.decode(text)));
    for (std::size_t token = 0; token < logits.size(); ++token)
      if (!mask[token]) logits[token] = kMasked;
  }
};

}  // namespace staircase
