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

/// Whether a text has the form of a marker: "<|im_end|>", "[INST]".
bool looks_like_marker(std::string_view content);

/// Whether only a program may write the token, so that the same text in a person's message is text: a special
/// token, or one that looks like a marker. Some files do not flag <|im_start|> as special. Thoughts and calls
/// are no markers: models write them, and clients send them back in messages.
bool is_marker(const AddedToken& token);

class AddedTokens {
 public:
  struct Found {
    std::size_t begin, end;  ///< including the white space that the token absorbs
    int id;
  };

  explicit AddedTokens(std::vector<AddedToken> tokens);

  /// The leftmost one in `text` from `begin` on; if several begin there, the longest. With `own`, a flag per
  /// byte, markers are found only where it is set for all their bytes.
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
