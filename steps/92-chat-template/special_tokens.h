// Special tokens: markers in a text that are one token each.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/text/tokenizer.h"

namespace staircase {

struct Marker {
  std::size_t begin = std::string_view::npos;  ///< where the marker begins; npos if there is none
  std::string_view text = {};
  int token = -1;
};

/// The first special token in `text` from `from` on; if several begin there, the longest.
inline Marker next_marker(const Tokenizer& tokenizer, std::string_view text, std::size_t from) {
  Marker next;
  for (const int token : tokenizer.special_tokens()) {
    const std::string_view mark = tokenizer.bytes(token);
    const std::size_t begin = text.find(mark, from);
    const bool is_longer = begin != text.npos && mark.size() > next.text.size();
    if (begin < next.begin || (begin == next.begin && is_longer)) next = {begin, mark, token};
  }
  return next;
}

/// The tokens of a text with special tokens. The text between two of these is encoded on its own.
inline std::vector<int> encode_with_markers(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int> tokens;
  for (std::size_t begin = 0; begin < text.size();) {
    const Marker marker = next_marker(tokenizer, text, begin);
    const std::vector<int> between = tokenizer.encode(text.substr(begin, marker.begin - begin));
    tokens.insert(tokens.end(), between.begin(), between.end());
    if (marker.token < 0) break;
    tokens.push_back(marker.token);
    begin = marker.begin + marker.text.size();
  }
  return tokenizer.with_begin(std::move(tokens));
}

/// The tokens of such a prompt. Throws Error if the model's tokenizer has rules for text next to a marker.
inline std::vector<int> marked_prompt(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int> tokens = encode_with_markers(tokenizer, text);
  if (tokens == tokenizer.with_begin(tokenizer.encode_with_special_tokens(text))) return tokens;
  throw Error(
      "--special-tokens: a marker in this prompt has a rule for the text beside it, such as lstrip, "
      "single_word or a prepend_scheme; only chats obey these rules (92-chat-template --chat)");
}

}  // namespace staircase
