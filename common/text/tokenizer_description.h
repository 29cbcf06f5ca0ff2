// What the files of a tokenizer say, whichever files they are: vocab.json and merges.txt, tokenizer.json, or
// the metadata of a GGUF file. A reader fills this in, and a Tokenizer is made of it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace staircase {

/// What SentencePiece writes for a space: U+2581.
constexpr std::string_view kSpaceMark = "\u2581";

/// A token that is found in the text before anything else, and is never merged with its neighbours.
struct AddedToken {
  int id = 0;
  std::string content;       ///< its text as it is, in no alphabet
  bool special = false;      ///< a mark such as <|im_end|>: in a text that a person typed it is text
  bool normalized = false;   ///< looked for in the normalized text
  bool single_word = false;  ///< only where no letter, digit or underscore is beside it
  bool lstrip = false;       ///< takes the white space before it along
  bool rstrip = false;       ///< and the white space after it
};

/// One change of the text before it is cut.
struct Normalization {
  enum class Kind { kNfc, kPrepend, kReplace } kind = Kind::kNfc;
  std::string from = {};  ///< kReplace: what is replaced, everywhere
  std::string to = {};  ///< kReplace: what replaces it; kPrepend: what comes before a text that is not empty
};

/// One cut of the text, or of the pieces of the cut before.
struct Cut {
  std::string pattern;          ///< each match is a piece
  bool literal = false;         ///< a text to look for, no regular expression
  bool drops_the_rest = false;  ///< what lies between two matches is no piece of its own, but lost
};

/// What comes before each part of a text that has added tokens in it.
enum class SpaceBefore {
  kNothing,
  kFirst,  ///< a space, but only where the text begins
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
    int left, right, token;  ///< the last is what the first two become
    int rank;                ///< the lower, the earlier it is done; of equal ones the leftmost in the text
  };

  Alphabet alphabet = Alphabet::kBytes;
  std::vector<std::string> pieces;  ///< by id, in the alphabet; empty where an id has no piece
  std::vector<AddedToken> added;    ///< some may be among the pieces, with the same id
  std::vector<Merge> merges;
  bool ignore_merges =
      false;  ///< a piece of text that is in the vocabulary is that token, whatever merges say
  std::optional<int>
      unknown;  ///< stands for a byte that the vocabulary lacks; without it such a byte is dropped
  bool fuse_unknown = false;  ///< several of them in a row are one

  std::vector<Normalization> normalizations;
  std::vector<Cut> cuts;
  SpaceBefore space_before = SpaceBefore::kNothing;
  bool marks_spaces = false;       ///< spaces become kSpaceMark after added tokens were found
  bool drops_first_space = false;  ///< decoding takes away the space that encoding put in front

  std::optional<int> begin;  ///< the begin-of-text token, if a text is to begin with it
};

}  // namespace staircase
