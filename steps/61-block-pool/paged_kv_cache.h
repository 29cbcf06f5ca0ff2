// Keys and values in blocks of a pool that all rows share (Kwon et al. 2023, section 4).
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "block_pool.h"
#include "common/model/model.h"

namespace staircase {

constexpr int kBlockSize = 16;  ///< positions per block
/// Blocks needed for this many positions.
constexpr int blocks_for(int positions) {
  return (positions + kBlockSize - 1) / kBlockSize;
}

/// Each row of the block table lists the blocks of one cache row, wherever these blocks are.
class PagedKvCache : public KvCache {
 public:
  /// Allocates no memory for layers that see fewer than `least_window` positions: a subclass does.
  PagedKvCache(Model& model, int n_rows, int n_blocks, int least_window = 0)
      : device_(model.device()), rows_(n_rows), pool_(n_blocks) {
    table_ = device_.allocate(DType::kInt32, {n_rows, blocks_for(model.config().n_positions)});
    const std::vector<std::int64_t> shape = model.kv_shape(n_blocks, kBlockSize);
    for (int l = 0; l < model.config().n_layer; ++l) {
      KeysValues& layer = layers_.emplace_back();
      if (model.window(l) < least_window) continue;
      layer = {device_.allocate(model.kv_dtype(), shape), device_.allocate(model.kv_dtype(), shape), table_};
    }
  }

  int length(int row) const override { return rows_[row].length; }
  std::vector<int> row_blocks(int row) const override { return rows_[row].blocks; }

  int blocks(int row) const { return static_cast<int>(rows_[row].blocks.size()); }

  void append(int row, int count) override {
    Row& own = rows_[row];
    own.length += count;
    while (blocks(row) < blocks_for(own.length)) {
      own.blocks.push_back(pool_.take());
      own.changed = true;
    }
    Tensor line = table_.rows(row, 1);
    if (std::exchange(own.changed, false)) device_.copy_from_host(own.blocks, line);
    most_ = std::max(most_, pool_.taken());
    used_ += own.length;
    taken_ += kBlockSize * static_cast<double>(own.blocks.size());
  }

  KeysValues layer(int index) override { return layers_[index]; }

  /// Frees the blocks after this length.
  void truncate(int row, int length) override {
    Row& own = rows_[row];
    own.length = length;
    for (; blocks(row) > blocks_for(length); own.blocks.pop_back()) pool_.release(own.blocks.back());
  }

  /// Swaps two rows. No key or value moves, only block numbers.
  virtual void swap_rows(int a, int b) {
    std::swap(rows_[a], rows_[b]);
    rows_[a].changed = rows_[b].changed = true;
  }

  int most_blocks() const { return most_; }  ///< maximum in use at one time
  /// The used share of the positions in allocated blocks, as the mean over all appends.
  double filled() const { return used_ / std::max(taken_, 1.0); }
  CacheUse use() const override {
    const std::size_t bytes = layers_.size() * 2 * layers_[0].keys.bytes() + table_.bytes();
    return {.bytes = bytes, .allocated = bytes};
  }

 protected:
  struct Row {
    std::vector<int> blocks = {};
    int length = 0;
    bool changed = false;  // whether its row of the table is outdated
  };

  Device& device_;
  Tensor table_;                    // [n_rows, blocks per context] int32, shared by all layers
  std::vector<KeysValues> layers_;  // [n_blocks, n_kv_head, kBlockSize, head_size] each
  std::vector<Row> rows_;
  BlockPool pool_;
  int most_ = 0;
  double used_ = 0.0, taken_ = 0.0;
};

}  // namespace staircase
