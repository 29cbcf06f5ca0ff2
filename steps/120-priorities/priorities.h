// Priorities with ageing: an urgent text overtakes others, but no text waits for ever.
#pragma once

#include <algorithm>
#include <utility>

#include "preemption.h"

namespace staircase {

/// Each text has a turn: the pass in which it arrived, plus `patience` passes for each unit of its priority;
/// 0 is the most urgent. A turn never changes, so two texts cannot preempt each other again and again.
class PriorityScheduler : public PreemptingScheduler {
 public:
  using PreemptingScheduler::PreemptingScheduler;

  int patience = 100;

  void pass() override {
    // New texts are at the end of the queue, and have no turn yet; the others are sorted.
    if (!waiting_.empty() && !waiting_.back().options.extras.turn) {
      for (Row& row : waiting_) {
        if (!row.options.extras.turn)
          row.options.extras.turn = passes_ + std::int64_t{patience} * row.options.extras.priority;
      }
      std::ranges::stable_sort(waiting_, {}, turn);
    }
    const std::size_t rows = rows_.size();
    PreemptingScheduler::pass();
    ++passes_;
    // Unless a text leaves, a waiting text finds no slot, no blocks, or no tokens left in the chunk.
    if (waiting_.empty() || rows_.empty() || rows_.size() < rows) return;
    if (turn(waiting_.front()) < turn(last_in_turn())) preempt();
  }

 protected:
  /// The text with the latest turn leaves the batch and waits in order of its turn.
  void preempt() override {
    Row& last = last_in_turn();
    const auto later = [&](const Row& row) { return turn(row) > turn(last); };
    waiting_.insert(std::ranges::find_if(waiting_, later), std::move(last));
    last.finished = FinishReason::kLength;
    free_slots();
    ++preempted_;
  }

 private:
  static std::int64_t turn(const Row& row) { return *row.options.extras.turn; }

  /// The row with the latest turn; of several, the newest.
  Row& last_in_turn() {
    const auto before = [](const Row& a, const Row& b) { return turn(a) < turn(b); };
    return *std::max_element(rows_.rbegin(), rows_.rend(), before);
  }

  std::int64_t passes_ = 0;
};

}  // namespace staircase
