// Added tokens: texts such as <|im_end|> that each become one token. They are found before the text is split.
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

/// Whether only a program may write the token, so that the same text in a person's message stays plain text.
/// True for special tokens and for tokens that look like a marker, since some files do not flag <|im_start|>
/// as special. The tokens around thoughts and calls are not markers: models write them, and clients send them
/// back in messages.
bool is_marker(const AddedToken& token);

class AddedTokens {
 public:
  struct Found {
    std::size_t begin, end;  ///< including the white space that the token absorbs
    int id;
  };

  explicit AddedTokens(std::vector<AddedToken> tokens);

  /// The leftmost added token in `text` from `begin` on; if several begin at the same byte, the longest.
  /// `own` has a flag per byte: markers are found only where it is set for all their bytes.
  std::optional<Found> next(std::string_view text, std::size_t begin,
                            const std::vector<bool>* own = nullptr) const;

  bool empty() const { return tokens_.empty(); }

 private:
  /// The index in tokens_ of the longest token that begins at `at`, or -1.
  int longest_at(std::string_view text, std::size_t at, const std::vector<bool>* own) const;

  std::vector<AddedToken> tokens_;
  // A tree: the first bytes of a token lead to a node.
  std::unordered_map<std::uint64_t, int> children_;  // by node << 8 | byte
  std::vector<int> token_at_;                        // by node: an index in tokens_, or -1
  std::array<bool, 256> begins_{};                   // whether any token begins with the byte
};

}  // namespace staircase
