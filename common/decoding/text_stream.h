// Turns the tokens of a growing sequence into text, for the terminal, JSON and the server.
#pragma once

#include <optional>
#include <string>

#include "common/decoding/results.h"
#include "common/model/config.h"
#include "common/text/tokenizer.h"

namespace staircase {

/// Returns only whole characters, and no text for an end-of-text token that ends the sequence.
class TextStream {
 public:
  /// `tokenizer` and `ends` must outlive this object.
  TextStream(const Tokenizer& tokenizer, const EndTokens& ends) : decoder_(tokenizer), ends_(&ends) {}

  /// Takes the next token and returns the text that it adds, often nothing. An end-of-text token waits: it
  /// becomes text only if the sequence goes on after it (`--ignore-eos`).
  std::string push(const Token& token);

  /// Ends the text and returns the rest of it.
  std::string finish(FinishReason reason);

  /// The pending end-of-text token, if there is one.
  std::optional<int> waiting_end() const { return waiting_end_; }

 private:
  std::string take_waiting();

  StreamDecoder decoder_;
  const EndTokens* ends_;
  std::optional<int> waiting_end_;
  bool has_text_ = false;  // whether that token brought its text: a stop filter decodes all tokens
};

}  // namespace staircase
