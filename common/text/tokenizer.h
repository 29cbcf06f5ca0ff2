// Converts text to tokens and back, as the files of a model define. Byte-pair encoding (Sennrich et al. 2016,
// section 3.2) works on bytes (Radford et al. 2019, section 2.2) or on characters (SentencePiece).
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
  /// Reads a .gguf file, or a folder: its tokenizer.json, otherwise vocab.json and merges.txt, then the
  /// additions of tokenizer_config.json, special_tokens_map.json and added_tokens.json. Added tokens that are
  /// among `ends`, the tokens that end a text, become special. Throws Error with one sentence for a missing
  /// or broken file, and for unsupported settings.
  static Tokenizer load(const std::filesystem::path& folder, std::span<const int> ends = {});

  /// `file` is for error messages.
  Tokenizer(const TokenizerDescription& description, const std::string& file);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Returns the token ids of any bytes, valid UTF-8 or not. The text of a special token is treated like any
  /// other text: "</s>" in a person's text ends nothing. Takes near-linear time.
  std::vector<int> encode(std::string_view text) const;

  /// Like encode(), but the text of a special token, such as "<|im_end|>", becomes that token. For texts that
  /// a program wrote, for example with a chat template.
  std::vector<int> encode_with_special_tokens(std::string_view text) const;

  /// Encodes a text of which a program wrote only some bytes. `own` has a flag per byte, and special tokens
  /// are found only where it is set for all their bytes. The text between two special tokens is encoded in
  /// one piece, as in training. Throws Error for a wrong number of flags.
  std::vector<int> encode_with_special_tokens(std::string_view text, const std::vector<bool>& own) const;

  /// Returns the tokens that a model continues: like encode(), with the begin-of-text token in front if the
  /// tokenizer requires one.
  std::vector<int> encode_prompt(std::string_view text) const;

  /// Returns `tokens`, after putting the begin-of-text token in front if the tokenizer requires one and it is
  /// missing.
  std::vector<int> with_begin(std::vector<int> tokens) const;

  /// The ids of the special tokens: markers such as <|im_end|> that are never recognized in a person's
  /// message. They include markers that the file does not flag as special (is_marker), which are still
  /// recognized in a prompt.
  std::vector<int> special_tokens() const;

  /// The bytes of one token; empty for an id that only the model has. A character may be spread over several
  /// tokens, so these bytes need not be valid UTF-8. Throws Error for an id outside the vocabulary.
  std::string_view bytes(int token) const;

  /// The bytes of all tokens together, as valid UTF-8: invalid bytes become U+FFFD.
  std::string decode(std::span<const int> tokens) const;

  /// Like decode(), but for tokens that begin a text: removes the space that SentencePiece puts in front.
  /// Tests compare this with transformers; programs stream the bytes of each token instead.
  std::string decode_whole(std::span<const int> tokens) const;

  /// Whether every id means the same bytes in both tokenizers. Ids that only one of them has must mean no
  /// bytes, since models with the same tokenizer may round their number of tokens up differently.
  bool same_tokens(const Tokenizer& other) const;

  /// Defines the ids from vocab_size() up to `size` as tokens with an empty text. A model may have more
  /// tokens than its tokenizer, usually to round their number up. No text is encoded to these tokens.
  void extend(int size);

  int vocab_size() const;

 private:
  struct Vocabulary;
  class Encoding;
  std::unique_ptr<Vocabulary> vocabulary_;
};

/// Decodes token by token and never splits a character: bytes that may still become a character wait for the
/// next token.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  /// Takes the next token and returns the newly completed text, valid UTF-8 and often empty.
  std::string push(int token);

  /// Takes any bytes instead of a token's.
  std::string push(std::string_view bytes);

  /// Ends the text: bytes that still wait become U+FFFD.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;
};

}  // namespace staircase
