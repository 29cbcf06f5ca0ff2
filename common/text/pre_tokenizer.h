// The pre-tokenizer splits a text into pieces: words, numbers, punctuation and white space. No merge crosses
// their borders.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "common/text/tokenizer_description.h"

struct pcre2_real_code_8;

namespace staircase {

/// GPT-2's pattern, which byte-level tokenizers use unless their files define another one.
const Cut& gpt2_cut();

class PreTokenizer {
 public:
  /// Each cut splits the pieces of the previous one. Throws Error for a pattern that PCRE2 does not support.
  explicit PreTokenizer(const std::vector<Cut>& cuts);

  /// Returns views of `text`: the matches of the patterns and the text between them. Any bytes must survive,
  /// so every run of invalid UTF-8 is also a piece.
  std::vector<std::string_view> split(std::string_view text) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* pattern) const;
  };
  struct Compiled {
    std::unique_ptr<pcre2_real_code_8, Free> pattern;
    bool drops_the_rest;
  };

  struct Search;

  static void cut_piece(const Compiled& cut, std::string_view piece, Search& search,
                        std::vector<std::string_view>& pieces);

  std::vector<Compiled> cuts_;
};

}  // namespace staircase
