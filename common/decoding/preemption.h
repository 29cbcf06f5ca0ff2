// Preemption (Kwon et al. 2023, section 4.5): texts start without room for all their tokens. When blocks run
// out, the newest text gives way.
#pragma once

#include <utility>

#include "scheduler.h"

namespace staircase {

/// A growing text takes room as it needs it. If there is none, the newest text leaves the batch and waits at
/// the front of the queue. When it joins again, it feeds all its tokens, like a prompt.
class PreemptingScheduler : public Scheduler {
 public:
  using Scheduler::Scheduler;

  void pass() override {
    while (!all_have_room()) preempt();
    Scheduler::pass();
  }

  int preempted() const { return preempted_; }  ///< how often a text gave way

 protected:
  /// Rows stay in the order in which they joined, so the newest is the last. With blocks, moving a row only
  /// swaps numbers.
  void free_slots() override {
    int kept = 0;
    for (int r = 0; r < std::ssize(rows_); ++r) {
      if (rows_[r].finished) continue;
      if (kept < r) {
        engine_.move_row(r, kept);
        std::swap(rows_[r], rows_[kept]);
      }
      ++kept;
    }
    while (std::ssize(rows_) > kept) leave();
  }

  virtual void preempt() {
    waiting_.push_front(std::move(rows_.back()));
    leave();
    ++preempted_;
  }

  int preempted_ = 0;

 private:
  /// Makes room for the next token of every row.
  bool all_have_room() {
    for (int r = 0; r < std::ssize(rows_); ++r) {
      if (!engine_.make_room(rows_[r], r)) return false;
    }
    return true;
  }

  /// Removes the last row.
  void leave() {
    rows_.pop_back();
    engine_.clear_row(static_cast<int>(rows_.size()));
  }
};

}  // namespace staircase
