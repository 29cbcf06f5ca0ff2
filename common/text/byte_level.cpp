// Byte-level vocabularies (Radford et al. 2019, section 2.2): a text is its bytes, and each byte has a token,
// so any input can be encoded. Some files leave out very rare bytes.
#include <array>

#include "common/text/byte_alphabet.h"
#include "common/text/spelling.h"

namespace staircase {

namespace {

class ByteLevel : public Spelling {
 public:
  explicit ByteLevel(const TokenizerDescription& description)
      : unknown_(description.unknown.value_or(kNone)), fuse_unknown_(description.fuse_unknown) {
    token_of_byte_.fill(kNone);
    for (std::size_t token = 0; token < description.pieces.size(); ++token) {
      const auto byte = bytes(description.pieces[token]);
      if (byte && byte->size() == 1)
        token_of_byte_[static_cast<unsigned char>(byte->front())] = static_cast<int>(token);
    }
  }

  std::optional<std::string> bytes(std::string_view piece) const override { return alphabet_.read(piece); }

  void spell(std::string_view text, std::vector<int>& tokens) const override {
    for (const char c : text) {
      const int token = token_of_byte_[static_cast<unsigned char>(c)];
      if (token != kNone) {
        tokens.push_back(token);
      } else if (unknown_ != kNone && !(fuse_unknown_ && !tokens.empty() && tokens.back() == unknown_)) {
        tokens.push_back(unknown_);
      }
    }
  }

 private:
  static constexpr int kNone = -1;

  ByteAlphabet alphabet_;
  std::array<int, 256> token_of_byte_;
  int unknown_;
  bool fuse_unknown_;
};

}  // namespace

std::unique_ptr<Spelling> byte_level(const TokenizerDescription& description) {
  return std::make_unique<ByteLevel>(description);
}

}  // namespace staircase
