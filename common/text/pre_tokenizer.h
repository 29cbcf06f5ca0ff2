// GPT-2's pre-tokenizer: it cuts text into words, numbers, punctuation and white space, across which no
// merge ever reaches.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

struct pcre2_real_code_8;

namespace staircase {

class PreTokenizer {
 public:
  PreTokenizer();

  /// Views of `text` that cover it from end to end: the matches of GPT-2's pattern and, since any bytes must
  /// survive, every run of bytes that is no valid UTF-8.
  std::vector<std::string_view> split(std::string_view text) const;

 private:
  void split_valid(std::string_view text, std::vector<std::string_view>& pieces) const;

  struct Free {
    void operator()(pcre2_real_code_8* pattern) const;
  };
  std::unique_ptr<pcre2_real_code_8, Free> pattern_;
};

}  // namespace staircase
