// The text of a growing sequence: an end-of-text token is text only where the sequence goes on after it.
#include "common/decoding/text_stream.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "common/text/tokenizer.h"

using namespace staircase;

namespace {

const Tokenizer& tales() {
  static const Tokenizer tokenizer =
      Tokenizer::load(std::filesystem::path(STAIRCASE_SOURCE_TREE) / "models" / "tales-6m");
  return tokenizer;
}

const int kEnd = tales().encode_with_special_tokens("<|endoftext|>")[0];

Token token(int id) {
  return {.id = id};
}

Token token_with_text(int id, const char* text) {
  return {.id = id, .text = text};
}

const int kFox = tales().encode(" fox")[0];

}  // namespace

TEST_CASE("the token that ends a sequence is not text") {
  const EndTokens ends{kEnd};
  TextStream stream(tales(), ends);
  CHECK(stream.push(token(kFox)) == " fox");
  CHECK(stream.push(token(kEnd)) == "");
  CHECK(stream.waiting_end() == kEnd);
  CHECK(stream.finish(FinishReason::kEos) == "");
}

TEST_CASE("an end-of-text token that a sequence goes on after is text, once") {
  const EndTokens ends{kEnd};
  TextStream stream(tales(), ends);
  CHECK(stream.push(token(kEnd)) == "");
  CHECK(stream.push(token(kEnd)) == "<|endoftext|>");
  CHECK(stream.push(token(kFox)) == "<|endoftext|> fox");
  CHECK(!stream.waiting_end());
  CHECK(stream.push(token(kEnd)) == "");
  CHECK(stream.finish(FinishReason::kLength) == "<|endoftext|>");
}

TEST_CASE("a text from a stop filter is taken unchanged") {
  const EndTokens ends{kEnd};
  TextStream stream(tales(), ends);
  CHECK(stream.push(token_with_text(kFox, "")) == "");
  CHECK(stream.push(token_with_text(kEnd, " fox<|endoftext|>")) == " fox<|endoftext|>");
  CHECK(stream.push(token_with_text(kFox, " f")) == " f");
  CHECK(stream.finish(FinishReason::kStop) == "");
}
