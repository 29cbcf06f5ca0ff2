// A pool of blocks that all rows share: tracks which blocks are free and which one to allocate next.
#pragma once

#include <algorithm>
#include <deque>
#include <numeric>
#include <vector>

namespace staircase {

/// Blocks are numbered from 0. Each has one or more users, or is free.
class BlockPool {
 public:
  explicit BlockPool(int n_blocks) : free_(n_blocks), users_(n_blocks) {
    std::iota(free_.begin(), free_.end(), 0);
  }

  int free() const { return static_cast<int>(free_.size()); }
  int taken() const { return static_cast<int>(users_.size() - free_.size()); }

  /// Allocates a block to its first user. At least one block must be free.
  int take() {
    const int block = free_.at(0);
    free_.pop_front();
    users_[block] = 1;
    return block;
  }

  /// Adds a user to a block, which may be free.
  void share(int block) {
    if (++users_[block] == 1) std::erase(free_, block);
  }

  /// Removes a user. A freed block to `keep` goes to the end of the queue, so the oldest is evicted first.
  void release(int block, bool keep) {
    if (--users_[block] > 0) return;
    if (keep) {
      free_.push_back(block);
    } else {
      free_.push_front(block);
    }
  }

 private:
  std::deque<int> free_;  // the first one is allocated next
  std::vector<int> users_;
};

}  // namespace staircase
