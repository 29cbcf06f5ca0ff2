// The contents of a tokenizer's files, whatever their form: vocab.json and merges.txt, tokenizer.json, or the
// metadata of a GGUF file. A reader fills in the description, and a Tokenizer is built from it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace staircase {

/// SentencePiece's mark for a space: U+2581.
constexpr std::string_view kSpaceMark = "\u2581";

/// A token that is found in the text before any other step, and never merges with its neighbours.
struct AddedToken {
  int id = 0;
  std::string content;       ///< its plain text, not in an alphabet
  bool special = false;      ///< such as <|im_end|>: in a person's text it is plain text
  bool normalized = false;   ///< found in the normalized text
  bool single_word = false;  ///< found only if no letter, digit or underscore is next to it
  bool lstrip = false;       ///< absorbs the white space before it
  bool rstrip = false;       ///< absorbs the white space after it
};

/// A change of the text before it is split.
struct Normalization {
  enum class Kind { kNfc, kPrepend, kReplace } kind = Kind::kNfc;
  std::string from = {};  ///< kReplace: the text to replace everywhere
  std::string to = {};    ///< kReplace: its replacement; kPrepend: the text to put before a non-empty text
};

/// A split of the text, or of the pieces of the previous split.
struct Cut {
  std::string pattern;          ///< each match becomes a piece
  bool literal = false;         ///< the pattern is a plain text, not a regular expression
  bool drops_the_rest = false;  ///< drops the text between two matches instead of making it a piece
};

/// What to put before each part of a text. Added tokens separate the parts.
enum class SpaceBefore {
  kNothing,
  kFirst,  ///< a space, but only at the beginning of the text
  kEach,   ///< a space, unless the part begins with one
};

struct TokenizerDescription {
  /// How the vocabulary writes its pieces.
  enum class Alphabet {
    kBytes,       ///< each byte as one printable character: "Ġthe" (GPT-2)
    kCharacters,  ///< as text, with kSpaceMark for a space and "<0xE2>" for a byte (SentencePiece)
  };
  struct Merge {
    int left, right, token;  ///< `token` is the result of merging the other two
    int rank;                ///< a lower rank is applied earlier; among equal ranks, the leftmost in the text
  };

  Alphabet alphabet = Alphabet::kBytes;
  std::vector<std::string> pieces;  ///< by id, in the alphabet; empty if an id has no piece
  std::vector<AddedToken> added;    ///< some may also be among the pieces, with the same id
  std::vector<Merge> merges;
  bool ignore_merges =
      false;  ///< a piece of text that is in the vocabulary becomes that token without merging
  std::optional<int>
      unknown;  ///< the token for a byte that the vocabulary lacks; without it, the byte is dropped
  bool fuse_unknown = false;  ///< several unknown tokens in a row become one

  std::vector<Normalization> normalizations;
  std::vector<Cut> cuts;
  SpaceBefore space_before = SpaceBefore::kNothing;
  bool marks_spaces = false;       ///< spaces become kSpaceMark once added tokens have been found
  bool drops_first_space = false;  ///< decoding removes the space that encoding put in front

  std::optional<int> begin;  ///< the begin-of-text token, if a text must begin with it
};

}  // namespace staircase
