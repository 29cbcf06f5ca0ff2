// Special tokens: marks in a text that are one token each.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/message.h"
#include "common/base/options.h"
#include "common/text/tokenizer.h"

namespace staircase {

/// How a prompt is read.
struct PromptOptions {
  bool special_tokens = false;
  bool show_tokens = false;
};

inline void add_options(OptionSink& sink, PromptOptions& options) {
  sink.add("--special-tokens", &options.special_tokens, "read special tokens in the prompt as such");
  sink.add("--show-tokens", &options.show_tokens, "print the tokens of the prompt");
}

/// Where a text has a special token, and which.
struct Marker {
  std::size_t begin = std::string_view::npos;
  std::string_view text = {};
  int token = -1;
};

/// The first special token whose text is in `text` from `from` on; of several at one place the longest. Its
/// `begin` is npos where there is none.
inline Marker next_marker(const Tokenizer& tokenizer, std::string_view text, std::size_t from) {
  Marker next;
  for (const int token : tokenizer.special_tokens()) {
    const std::string_view mark = tokenizer.bytes(token);
    const std::size_t begin = text.find(mark, from);
    const bool is_longer = begin == next.begin && mark.size() > next.text.size();
    if (begin < next.begin || (begin != text.npos && is_longer)) next = {begin, mark, token};
  }
  return next;
}

/// The tokens of a text in which special tokens are marks. What lies between two of them is encoded by
/// itself, as if nothing were around it.
inline std::vector<int> encode_with_markers(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int> tokens;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const Marker marker = next_marker(tokenizer, text, begin);
    const std::vector<int> between = tokenizer.encode(text.substr(begin, marker.begin - begin));
    tokens.insert(tokens.end(), between.begin(), between.end());
    if (marker.token < 0) break;
    tokens.push_back(marker.token);
    begin = marker.begin + marker.text.size();
  }
  return tokens;
}

/// The tokens of a prompt, with the begin-of-text token in front if the tokenizer wants one.
inline std::vector<int> encode_prompt(const Tokenizer& tokenizer, const std::string& text,
                                      const PromptOptions& options) {
  if (!options.special_tokens) return tokenizer.encode_prompt(text);
  return tokenizer.with_begin(encode_with_markers(tokenizer, text));
}

/// Prints each token with its text, on standard error.
inline void show_tokens(const Tokenizer& tokenizer, const std::vector<int>& tokens) {
  for (const int token : tokens)
    say(fmt::format("{:>6}  {}", token, quoted(std::string(tokenizer.bytes(token)))));
}

}  // namespace staircase
