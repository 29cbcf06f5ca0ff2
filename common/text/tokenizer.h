// GPT-2's tokenizer: byte-level byte-pair encoding (Sennrich et al. 2016, section 3.2; Radford et al. 2019,
// section 2.2). Text becomes pieces by a regular expression, a piece becomes bytes, and neighbouring symbols
// are merged in the order in which the merges were learnt.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace staircase {

class Tokenizer {
 public:
  /// Reads `folder`/vocab.json and `folder`/merges.txt. Throws Error with one sentence for a missing or
  /// broken file, and for a vocabulary without "<|endoftext|>" unless `end_of_text` is the token in its
  /// place, or -1 for none.
  static Tokenizer load(const std::filesystem::path& folder, std::optional<int> end_of_text = {});

  /// The same from the two files' contents. Separate from the folder so that a test can feed it anything;
  /// the paths are for error messages only.
  static Tokenizer parse(std::string_view vocab_json, std::string_view merges_txt,
                         const std::string& vocab_path, const std::string& merges_path,
                         std::optional<int> end_of_text = {});

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Token ids of any bytes, valid UTF-8 or not; "<|endoftext|>", or what is in its place, becomes its
  /// special token. Near-linear in the length.
  std::vector<int> encode(std::string_view text) const;

  /// The same, but "<|endoftext|>" is text like any other.
  std::vector<int> encode_ordinary(std::string_view text) const;

  /// The bytes of one token; an id outside the vocabulary throws Error. A character may be spread over
  /// several tokens, so the bytes of one need not be valid UTF-8.
  std::string_view bytes(int token) const;

  /// The bytes of all tokens together, as valid UTF-8: what is not a character becomes U+FFFD.
  std::string decode(std::span<const int> tokens) const;

  /// Whether every id means the same bytes in both.
  bool same_tokens(const Tokenizer& other) const;

  /// Gives the ids from vocab_size() up to `size` a meaning, "<350>" for 350: a model may have more tokens
  /// than its tokenizer, most often to round their number up. No text is encoded to them.
  void extend(int size);

  int vocab_size() const;
  int eos_token_id() const;

 private:
  struct Vocabulary;
  explicit Tokenizer(std::unique_ptr<Vocabulary> vocabulary);
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
