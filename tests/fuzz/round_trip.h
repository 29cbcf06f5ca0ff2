// What holds for any tokenizer and any bytes.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include "common/text/tokenizer.h"
#include "common/text/utf8.h"

namespace staircase {

inline void require(bool holds) {
  if (!holds) std::abort();
}

inline void require_round_trip(const Tokenizer& tokenizer, std::string_view text) {
  for (const auto& ids : {tokenizer.encode(text), tokenizer.encode_with_special_tokens(text)}) {
    std::string bytes, streamed;
    StreamDecoder decoder(tokenizer);
    for (const int id : ids) {
      bytes += tokenizer.bytes(id);
      streamed += decoder.push(id);
    }
    streamed += decoder.finish();
    require(bytes == text);
    require(streamed == tokenizer.decode(ids));
    require(streamed == to_valid_utf8(text));
    require(streamed == to_valid_utf8(streamed));
  }
}

}  // namespace staircase
