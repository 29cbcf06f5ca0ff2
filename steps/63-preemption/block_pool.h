// A pool of blocks that all rows share: tracks which blocks are free and which one to allocate next.
#pragma once

#include <numeric>
#include <vector>

namespace staircase {

/// Blocks are numbered from 0. Each has one user or is free.
class BlockPool {
 public:
  explicit BlockPool(int n_blocks) : free_(n_blocks), size_(n_blocks) {
    std::iota(free_.rbegin(), free_.rend(), 0);  // block 0 is allocated first
  }

  int free() const { return static_cast<int>(free_.size()); }
  int taken() const { return size_ - free(); }

  /// At least one block must be free.
  int take() {
    const int block = free_.at(free_.size() - 1);
    free_.pop_back();
    return block;
  }

  void release(int block) { free_.push_back(block); }

 private:
  std::vector<int> free_;  // the last one is allocated next
  int size_;
};

}  // namespace staircase
