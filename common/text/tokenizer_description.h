// The contents of a tokenizer's files, whichever they are: vocab.json and merges.txt, tokenizer.json, or the
// metadata of a GGUF file. A reader fills this in, and a Tokenizer is built from it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace staircase {

/// SentencePiece's mark for a space: U+2581.
constexpr std::string_view kSpaceMark = "\u2581";

/// A token that is found in the text before anything else, and never merges with its neighbours.
struct AddedToken {
  int id = 0;
  std::string content;       ///< its plain text, in no alphabet
  bool special = false;      ///< such as <|im_end|>: in a person's text it is plain text
  bool normalized = false;   ///< found in the normalized text
  bool single_word = false;  ///< only if no letter, digit or underscore is next to it
  bool lstrip = false;       ///< absorbs the white space before it
  bool rstrip = false;       ///< and the white space after it
};

/// A change of the text before it is split.
struct Normalization {
  enum class Kind { kNfc, kPrepend, kReplace } kind = Kind::kNfc;
  std::string from = {};  ///< kReplace: what is replaced, everywhere
  std::string to = {};  ///< kReplace: what replaces it; kPrepend: what comes before a text that is not empty
};

/// A split of the text, or of the pieces of the previous split.
struct Cut {
  std::string pattern;          ///< each match is a piece
  bool literal = false;         ///< a text to find, not a regular expression
  bool drops_the_rest = false;  ///< the text between two matches is dropped, not a piece
};

/// What precedes each part of a text that has added tokens in it.
enum class SpaceBefore {
  kNothing,
  kFirst,  ///< a space, but only at the beginning of the text
  kEach,   ///< a space, unless the part begins with one
};

struct TokenizerDescription {
  /// How the vocabulary writes text.
  enum class Alphabet {
    kBytes,       ///< each byte as one printable character: "Ġthe" (GPT-2)
    kCharacters,  ///< as text, a space as kSpaceMark, and a byte without a character as "<0xE2>"
                  ///< (SentencePiece)
  };
  struct Merge {
    int left, right, token;  ///< the last is the result of merging the first two
    int rank;                ///< the lower, the earlier it is applied; among equal ones the leftmost in the
                             ///< text
  };

  Alphabet alphabet = Alphabet::kBytes;
  std::vector<std::string> pieces;  ///< by id, in the alphabet; empty where an id has no piece
  std::vector<AddedToken> added;    ///< some may be among the pieces, with the same id
  std::vector<Merge> merges;
  bool ignore_merges =
      false;  ///< a piece of text that is in the vocabulary is that token, whatever the merges are
  std::optional<int>
      unknown;  ///< represents a byte that the vocabulary lacks; without it such a byte is dropped
  bool fuse_unknown = false;  ///< several of them in a row are one

  std::vector<Normalization> normalizations;
  std::vector<Cut> cuts;
  SpaceBefore space_before = SpaceBefore::kNothing;
  bool marks_spaces = false;       ///< spaces become kSpaceMark after added tokens were found
  bool drops_first_space = false;  ///< decoding removes the space that encoding put in front

  std::optional<int> begin;  ///< the begin-of-text token, if a text is to begin with it
};

}  // namespace staircase
