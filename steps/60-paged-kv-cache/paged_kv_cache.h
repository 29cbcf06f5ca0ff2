// Keys and values in blocks of a pool that all rows share (Kwon et al. 2023, section 4).
#pragma once

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "scheduler.h"

namespace staircase {

constexpr int kBlockSize = 16;  ///< positions of a block
/// Blocks that hold so many positions.
constexpr int blocks_for(int positions) {
  return (positions + kBlockSize - 1) / kBlockSize;
}

/// A row takes a free block of the pool when it needs one. Its line of the block table says which it has.
class PagedKvCache : public KvCache {
 public:
  PagedKvCache(Model& model, int n_rows, int n_blocks)
      : device_(model.device()), rows_(n_rows), free_(n_blocks) {
    const ModelConfig& config = model.config();
    table_ = device_.allocate(DType::kInt32, {n_rows, blocks_for(config.n_positions)});
    const std::vector<std::int64_t> shape = model.kv_shape(n_blocks, kBlockSize);
    for (int l = 0; l < config.n_layer; ++l) {
      layers_.push_back(
          {device_.allocate(model.kv_dtype(), shape), device_.allocate(model.kv_dtype(), shape), table_});
    }
    std::iota(free_.rbegin(), free_.rend(), 0);  // block 0 is the first to be taken
  }

  int length(int row) const override { return rows_[row].length; }

  void append(int row, int count) override {
    Row& own = rows_[row];
    own.length += count;
    while (std::ssize(own.blocks) < blocks_for(own.length)) {
      own.blocks.push_back(free_.at(free_.size() - 1));
      free_.pop_back();
      own.changed = true;
    }
    Tensor line = table_.rows(row, 1);
    if (std::exchange(own.changed, false)) device_.copy_from_host(own.blocks, line);
    most_ = std::max(most_, static_cast<int>(layers_[0].keys.dim(0) - std::ssize(free_)));
    used_ += own.length;
    taken_ += kBlockSize * static_cast<double>(own.blocks.size());
  }

  KeysValues layer(int index) override { return layers_[index]; }
  /// Blocks behind that length are free again.
  void truncate(int row, int length) override {
    Row& own = rows_[row];
    for (own.length = length; std::ssize(own.blocks) > blocks_for(length); own.blocks.pop_back()) {
      free_.push_back(own.blocks.back());
    }
  }

  /// Each becomes what the other is. No key moves: numbers of blocks do.
  void swap_rows(int a, int b) {
    std::swap(rows_[a], rows_[b]);
    rows_[a].changed = rows_[b].changed = true;
  }

  int most_blocks() const { return most_; }  ///< taken at one time
  /// Of the positions in taken blocks, the part that is in use; the mean of all passes: each append is one.
  double filled() const { return used_ / std::max(taken_, 1.0); }
  CacheUse use() const override {
    const std::size_t bytes = layers_.size() * 2 * layers_[0].keys.bytes() + table_.bytes();
    return {.bytes = bytes, .allocated = bytes};
  }

 private:
  struct Row {
    std::vector<int> blocks = {};
    int length = 0;
    bool changed = false;  // since its line of the table was written
  };

  Device& device_;
  Tensor table_;                    // [n_rows, blocks of a context] int32, of all layers
  std::vector<KeysValues> layers_;  // [n_blocks, n_head, kBlockSize, head_size] each
  std::vector<Row> rows_;
  std::vector<int> free_;  // blocks; the last one is the next to be taken
  int most_ = 0;
  double used_ = 0.0, taken_ = 0.0;
};

/// With a cache that has an empty row for each place. No text may be longer than the context: none slides.
inline Engine make_engine(Model& model, PagedKvCache& cache) {
  const auto feed = [&](const Row& row, int r) { return std::span(row.tokens).subspan(cache.length(r)); };
  const auto forward = [&](auto sequences) { return model.next_logits(sequences, &cache); };
  const auto move_row = [&](int from, int to) { cache.swap_rows(from, to); };
  const auto clear_row = [&](int r) { cache.truncate(r, 0); };
  return {model.config().eos_token_id, feed, forward, move_row, clear_row};
}

}  // namespace staircase
