// From text to tokens and back, as the files of a model say: byte-pair encoding (Sennrich et al. 2016,
// section 3.2) of bytes (Radford et al. 2019, section 2.2) or of characters (SentencePiece).
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/text/tokenizer_description.h"

namespace staircase {

class Tokenizer {
 public:
  /// Reads what `folder` has: tokenizer.json, or else vocab.json and merges.txt; and what
  /// tokenizer_config.json and added_tokens.json add. Throws Error with one sentence for a missing or broken
  /// file, and for what a file wants and is not built.
  static Tokenizer load(const std::filesystem::path& folder);

  /// `file` is for error messages.
  Tokenizer(const TokenizerDescription& description, const std::string& file);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Token ids of any bytes, valid UTF-8 or not. Special tokens are text like any other: "</s>" in the text
  /// of a person ends nothing. Near-linear in the length.
  std::vector<int> encode(std::string_view text) const;

  /// The same, but the text of a special token, as "<|im_end|>", becomes that token. For texts that a program
  /// wrote, such as a chat template's.
  std::vector<int> encode_with_special_tokens(std::string_view text) const;

  /// The same for a text of which a program wrote only a part: special tokens are found only where `own`, a
  /// flag for each byte, is set for all of theirs. What stands between two of them is encoded in one piece,
  /// as in the training of the model. Throws Error for another number of flags.
  std::vector<int> encode_with_special_tokens(std::string_view text, const std::vector<bool>& own) const;

  /// encode(), with the begin-of-text token in front if the tokenizer wants one: what a model continues.
  std::vector<int> encode_prompt(std::string_view text) const;

  /// `tokens` with the begin-of-text token in front if the tokenizer wants one and it is not there.
  std::vector<int> with_begin(std::vector<int> tokens) const;

  /// The ids of the special tokens, the marks such as <|im_end|> that no text of a person is read as.
  std::vector<int> special_tokens() const;

  /// The bytes of one token; none for an id that only the model has. An id outside the vocabulary throws
  /// Error. A character may be spread over several tokens, so the bytes of one need not be valid UTF-8.
  std::string_view bytes(int token) const;

  /// The bytes of all tokens together, as valid UTF-8: what is not a character becomes U+FFFD.
  std::string decode(std::span<const int> tokens) const;

  /// decode() for tokens with which a text begins: SentencePiece puts a space in front, which is no part of
  /// it.
  std::string decode_whole(std::span<const int> tokens) const;

  /// Whether every id means the same bytes in both. Ids that only one of them has mean none: models with one
  /// tokenizer round the number of their tokens up differently.
  bool same_tokens(const Tokenizer& other) const;

  /// Gives the ids from vocab_size() up to `size` a meaning, the empty text: a model may have more tokens
  /// than its tokenizer, most often to round their number up. No text is encoded to them.
  void extend(int size);

  int vocab_size() const;

 private:
  struct Vocabulary;
  class Encoding;
  std::unique_ptr<Vocabulary> vocabulary_;
};

/// Decodes token by token without ever cutting a character in two: bytes that may still become a character
/// wait for the next token.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  /// Takes the next token and returns the text that is complete now, valid UTF-8 and often empty.
  std::string push(int token);

  /// The same for any bytes.
  std::string push(std::string_view bytes);

  /// The end: what still waits becomes U+FFFD.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;
};

}  // namespace staircase
