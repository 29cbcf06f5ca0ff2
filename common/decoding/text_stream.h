// The text of a sequence as it grows, for all that show it: the terminal, JSON and the server.
#pragma once

#include <optional>
#include <string>

#include "common/decoding/results.h"
#include "common/model/config.h"
#include "common/text/tokenizer.h"

namespace staircase {

/// Whole characters only, and no text for an end-of-text token that ends the sequence.
class TextStream {
 public:
  /// Both must outlive this.
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
  bool has_text_ = false;  // of its own: a stop filter decodes all tokens, this one as well
};

}  // namespace staircase
