// Added tokens: texts such as <|im_end|> that are found before a text is split, and are one token each.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/text/tokenizer_description.h"

namespace staircase {

/// Whether an added token is a marker by its form: "<|im_end|>", "<think>", "[INST]". Some files do not flag
/// theirs as special.
bool looks_like_marker(std::string_view content);

class AddedTokens {
 public:
  struct Found {
    std::size_t begin, end;  ///< including the white space that the token absorbs
    int id;
  };

  explicit AddedTokens(std::vector<AddedToken> tokens);

  /// The leftmost one in `text` from `begin` on; if several begin there, the longest. With `own`, a flag per
  /// byte, special tokens are found only where it is set for all their bytes.
  std::optional<Found> next(std::string_view text, std::size_t begin,
                            const std::vector<bool>* own = nullptr) const;

  bool empty() const { return tokens_.empty(); }

 private:
  /// The longest token that begins at `at`, an index of tokens_, or -1.
  int longest_at(std::string_view text, std::size_t at, const std::vector<bool>* own) const;

  std::vector<AddedToken> tokens_;
  // A tree: the bytes of a token's beginning lead to a node.
  std::unordered_map<std::uint64_t, int> children_;  // by node << 8 | byte
  std::vector<int> token_at_;                        // by node: an index of tokens_, or -1
  std::array<bool, 256> begins_{};                   // whether any token begins with the byte
};

}  // namespace staircase
