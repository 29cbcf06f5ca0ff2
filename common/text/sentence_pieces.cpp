// Vocabularies of SentencePiece (Kudo and Richardson 2018): merging begins with characters. A space is
// U+2581. A character that the vocabulary lacks becomes tokens for its bytes: "<0xF0>", "<0x9F>", ...
#include <fmt/format.h>

#include <array>
#include <unordered_map>

#include "common/base/error.h"
#include "common/text/normalizer.h"
#include "common/text/spelling.h"
#include "common/text/utf8.h"

namespace staircase {

namespace {

constexpr int kNone = -1;

/// The byte that a piece such as "<0xE2>" represents, or kNone.
int byte_of(std::string_view piece) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (piece.size() != 6 || !piece.starts_with("<0x") || !piece.ends_with('>')) return kNone;
  const std::size_t high = kDigits.find(piece[3]), low = kDigits.find(piece[4]);
  if (high == kDigits.npos || low == kDigits.npos) return kNone;
  return static_cast<int>(16 * high + low);
}

std::size_t length_of_character(std::string_view text) {
  std::size_t length = 1;
  while (length < text.size() && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80) ++length;
  return length;
}

class SentencePieces : public Spelling {
 public:
  explicit SentencePieces(const TokenizerDescription& description) {
    token_of_byte_.fill(kNone);
    for (std::size_t token = 0; token < description.pieces.size(); ++token) {
      const std::string& piece = description.pieces[token];
      if (const int byte = byte_of(piece); byte != kNone) {
        token_of_byte_[static_cast<std::size_t>(byte)] = static_cast<int>(token);
      } else if (!piece.empty() && length_of_character(piece) == piece.size()) {
        token_of_character_.emplace(piece, static_cast<int>(token));
      }
    }
    for (int byte = 0; byte < 256; ++byte) {
      if (token_of_byte_[static_cast<std::size_t>(byte)] == kNone) {
        throw Error("the vocabulary has no token <0x{:02X}>; with byte_fallback it needs all 256", byte);
      }
    }
  }

  std::optional<std::string> bytes(std::string_view piece) const override {
    if (const int byte = byte_of(piece); byte != kNone) return std::string(1, static_cast<char>(byte));
    return replaced(piece, kSpaceMark, " ");
  }

  void spell(std::string_view text, std::vector<int>& tokens) const override {
    while (!text.empty()) {
      const std::string_view character = text.substr(0, length_of_character(text));
      text.remove_prefix(character.size());
      const auto found = token_of_character_.find(std::string(character));
      if (found != token_of_character_.end()) {
        tokens.push_back(found->second);
      } else {
        for (const char byte : character) tokens.push_back(token_of_byte_[static_cast<unsigned char>(byte)]);
      }
    }
  }

 private:
  std::array<int, 256> token_of_byte_;
  std::unordered_map<std::string, int> token_of_character_;
};

}  // namespace

std::unique_ptr<Spelling> sentence_pieces(const TokenizerDescription& description) {
  return std::make_unique<SentencePieces>(description);
}

}  // namespace staircase
