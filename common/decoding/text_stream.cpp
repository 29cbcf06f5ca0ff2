#include "common/decoding/text_stream.h"

#include <utility>

namespace staircase {

std::string TextStream::push(const Token& token) {
  std::string text = take_waiting();
  if (ends_->contains(token.id)) {
    waiting_end_ = token.id;
    has_text_ = token.text.has_value();
  }
  if (token.text) return text + decoder_.push(*token.text);
  return waiting_end_ ? text : text + decoder_.push(token.id);
}

std::string TextStream::finish(FinishReason reason) {
  if (reason == FinishReason::kEos) waiting_end_.reset();
  const std::string text = take_waiting();
  return text + decoder_.finish();
}

std::string TextStream::take_waiting() {
  const std::optional<int> end = std::exchange(waiting_end_, {});
  return end && !has_text_ ? decoder_.push(*end) : "";
}

}  // namespace staircase
