// The blocks of a pool that all rows share: which are free, and in which order they are taken.
#pragma once

#include <algorithm>
#include <deque>
#include <numeric>
#include <vector>

namespace staircase {

/// Blocks are numbers from 0. Each has users, or is free without any.
class BlockPool {
 public:
  explicit BlockPool(int n_blocks) : free_(n_blocks), users_(n_blocks) {
    std::iota(free_.begin(), free_.end(), 0);
  }

  int free() const { return static_cast<int>(free_.size()); }
  int taken() const { return static_cast<int>(users_.size() - free_.size()); }

  /// A free block, which there must be, for its first user.
  int take() {
    const int block = free_.at(0);
    free_.pop_front();
    users_[block] = 1;
    return block;
  }

  /// One more user of a block. A free one is free no longer.
  void share(int block) {
    if (++users_[block] == 1) std::erase(free_, block);
  }

  /// One user less. A free block that is worth keeping is taken after all others.
  void release(int block, bool keep) {
    if (--users_[block] > 0) return;
    if (keep) {
      free_.push_back(block);
    } else {
      free_.push_front(block);
    }
  }

 private:
  std::deque<int> free_;  // the first one is the next to be taken
  std::vector<int> users_;
};

}  // namespace staircase
