// The differences between vocabularies: how they write a piece, and which tokens merging begins with.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/text/tokenizer_description.h"

namespace staircase {

class Spelling {
 public:
  virtual ~Spelling() = default;

  /// The bytes that a piece of the vocabulary represents; nothing if the piece is not in this alphabet.
  virtual std::optional<std::string> bytes(std::string_view piece) const = 0;

  /// Appends the tokens with which merging begins: one for each byte or character of `text`.
  virtual void spell(std::string_view text, std::vector<int>& tokens) const = 0;
};

/// GPT-2's spelling: one token per byte.
std::unique_ptr<Spelling> byte_level(const TokenizerDescription& description);

/// SentencePiece's spelling: one token per character, or the tokens of its bytes if the character has none.
/// Throws Error if a byte has no token.
std::unique_ptr<Spelling> sentence_pieces(const TokenizerDescription& description);

/// The spelling that `description` names.
inline std::unique_ptr<Spelling> spelling_of(const TokenizerDescription& description) {
  const bool bytes = description.alphabet == TokenizerDescription::Alphabet::kBytes;
  return bytes ? byte_level(description) : sentence_pieces(description);
}

}  // namespace staircase
