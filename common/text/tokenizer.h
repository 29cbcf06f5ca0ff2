// From text to tokens and back, as the files of a model define it. Byte-pair encoding (Sennrich et al. 2016,
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
  /// Reads the folder's tokenizer.json, otherwise vocab.json and merges.txt; then the additions of
  /// tokenizer_config.json, special_tokens_map.json and added_tokens.json. Or reads a .gguf file. Throws
  /// Error with one sentence for a missing or broken file, and for unsupported settings. Those of its added
  /// tokens that are among `ends`, which end a text, are special.
  static Tokenizer load(const std::filesystem::path& folder, std::span<const int> ends = {});

  /// `file` is for error messages.
  Tokenizer(const TokenizerDescription& description, const std::string& file);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Token ids of any bytes, valid UTF-8 or not. Special tokens are text like any other: "</s>" in a person's
  /// text ends nothing. Near-linear in the length.
  std::vector<int> encode(std::string_view text) const;

  /// The same, but the text of a special token, such as "<|im_end|>", becomes that token. For texts that a
  /// program wrote, such as a chat template's.
  std::vector<int> encode_with_special_tokens(std::string_view text) const;

  /// The same for a text of which a program wrote only a part: special tokens are found only where `own`, a
  /// flag per byte, is set for all their bytes. The text between two of them is encoded in one piece, as in
  /// the training of the model. Throws Error for a wrong number of flags.
  std::vector<int> encode_with_special_tokens(std::string_view text, const std::vector<bool>& own) const;

  /// encode(), with the begin-of-text token in front if the tokenizer requires one: the tokens that a model
  /// continues.
  std::vector<int> encode_prompt(std::string_view text) const;

  /// `tokens` with the begin-of-text token in front, if the tokenizer requires one and it is missing.
  std::vector<int> with_begin(std::vector<int> tokens) const;

  /// The ids of the special tokens: markers such as <|im_end|> that are never read in a person's message.
  /// They include those that a file flags wrongly (is_marker), which are still read in a prompt.
  std::vector<int> special_tokens() const;

  /// The bytes of one token; empty for an id that only the model has. An id outside the vocabulary throws
  /// Error. A character may be spread over several tokens, so the bytes of one need not be valid UTF-8.
  std::string_view bytes(int token) const;

  /// The bytes of all tokens together, as valid UTF-8: invalid bytes become U+FFFD.
  std::string decode(std::span<const int> tokens) const;

  /// decode() for the first tokens of a text: SentencePiece puts a space in front, which is not part of it.
  /// Tests compare it with transformers; programs stream the bytes of each token.
  std::string decode_whole(std::span<const int> tokens) const;

  /// Whether every id means the same bytes in both. Ids that only one of them has mean no bytes: models with
  /// the same tokenizer round their number of tokens up differently.
  bool same_tokens(const Tokenizer& other) const;

  /// Gives the ids from vocab_size() up to `size` a meaning, the empty text: a model may have more tokens
  /// than its tokenizer, usually to round their number up. No text is encoded to them.
  void extend(int size);

  int vocab_size() const;

 private:
  struct Vocabulary;
  class Encoding;
  std::unique_ptr<Vocabulary> vocabulary_;
};

/// Decodes token by token without ever splitting a character: bytes that may still become a character wait
/// for the next token.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  /// Takes the next token and returns the newly completed text, valid UTF-8 and often empty.
  std::string push(int token);

  /// The same for any bytes.
  std::string push(std::string_view bytes);

  /// The end: waiting bytes become U+FFFD.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;
};

}  // namespace staircase
