// What holds for any tokenizer and any bytes.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "common/text/tokenizer.h"
#include "common/text/utf8.h"

namespace staircase {

inline void require(bool holds) {
  if (!holds) std::abort();
}

/// A stream of `ids` shows valid text, the same that they decode to. Returns it.
inline std::string require_streams(const Tokenizer& tokenizer, const std::vector<int>& ids) {
  std::string streamed;
  StreamDecoder decoder(tokenizer);
  for (const int id : ids) streamed += decoder.push(id);
  streamed += decoder.finish();
  require(streamed == tokenizer.decode(ids));
  require(streamed == to_valid_utf8(streamed));
  return streamed;
}

inline void require_round_trip(const Tokenizer& tokenizer, std::string_view text) {
  for (const auto& ids : {tokenizer.encode(text), tokenizer.encode_with_special_tokens(text)}) {
    std::string bytes;
    for (const int id : ids) bytes += tokenizer.bytes(id);
    require(bytes == text);
    require(require_streams(tokenizer, ids) == to_valid_utf8(text));
  }
}

}  // namespace staircase
