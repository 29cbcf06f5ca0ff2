// A conversation that has outgrown the context loses its oldest turns.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "common/text/chat_template.h"

namespace staircase {

/// Remembers which turns were dropped, so the next question drops no more than it must.
class DroppedTurns {
 public:
  DroppedTurns() = default;

  /// Continues after these messages were dropped and reported.
  explicit DroppedTurns(std::vector<Message> dropped) : dropped_(std::move(dropped)) { report(); }

  const std::vector<Message>& dropped() const { return dropped_; }

  /// `messages` without the dropped ones. A conversation that does not begin with them is a different one,
  /// and has lost nothing yet.
  std::vector<Message> rest(std::vector<Message> messages) {
    const auto first = messages.begin() + first_turn(messages);
    const bool is_known = std::distance(first, messages.end()) > std::ssize(dropped_) &&
                          std::equal(dropped_.begin(), dropped_.end(), first);
    if (!is_known) *this = {};
    messages.erase(first, first + std::ssize(dropped_));
    return messages;
  }

  /// Removes the oldest turn from `messages`: a question and everything up to the next question. The system
  /// message stays. Returns false, and removes nothing, if only one question is left.
  bool drop_oldest(std::vector<Message>& messages) {
    const auto is_question = [](const Message& message) { return message.role == "user"; };
    const auto first = messages.begin() + first_turn(messages);
    if (first == messages.end()) return false;
    const auto next = std::find_if(std::next(first), messages.end(), is_question);
    if (next == messages.end()) return false;
    dropped_.insert(dropped_.end(), first, next);
    messages.erase(first, next);
    return true;
  }

  int count() const { return static_cast<int>(dropped_.size()); }

  /// How many messages were dropped since the last report.
  int report() { return count() - std::exchange(reported_, count()); }

 private:
  static std::ptrdiff_t first_turn(const std::vector<Message>& messages) {
    return !messages.empty() && messages[0].role == "system" ? 1 : 0;
  }

  std::vector<Message> dropped_;
  int reported_ = 0;
};

}  // namespace staircase
