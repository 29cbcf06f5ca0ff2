// The pre-tokenizer splits a text into words, numbers, punctuation and white space; no merge crosses their
// borders.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "common/text/tokenizer_description.h"

struct pcre2_real_code_8;

namespace staircase {

/// GPT-2's pattern, which byte-level tokenizers use unless their files say otherwise.
const Cut& gpt2_cut();

class PreTokenizer {
 public:
  /// Each split is made in the pieces of the previous one. Throws Error for a pattern that PCRE2 does not
  /// understand.
  explicit PreTokenizer(const std::vector<Cut>& cuts);

  /// Views of `text`: the matches of the patterns and the text between them. Since any bytes must survive,
  /// every run of invalid UTF-8 is a piece as well.
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
