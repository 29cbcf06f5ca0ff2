// The blocks of a pool that all rows share: which ones are free, and in which order they are taken.
#pragma once

#include <numeric>
#include <vector>

namespace staircase {

/// Blocks are numbers from 0. Each has one user or is free.
class BlockPool {
 public:
  explicit BlockPool(int n_blocks) : free_(n_blocks), size_(n_blocks) {
    std::iota(free_.rbegin(), free_.rend(), 0);  // block 0 is the first to be taken
  }

  int free() const { return static_cast<int>(free_.size()); }
  int taken() const { return size_ - free(); }

  /// There must be a free one.
  int take() {
    const int block = free_.at(free_.size() - 1);
    free_.pop_back();
    return block;
  }

  void release(int block) { free_.push_back(block); }

 private:
  std::vector<int> free_;  // the last one is the next to be taken
  int size_;
};

}  // namespace staircase
