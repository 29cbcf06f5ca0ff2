// Keys and values in blocks of a pool that all rows share (Kwon et al. 2023, section 4).
#pragma once

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "block_pool.h"
#include "common/model/model.h"
#include "prefix_index.h"

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
      : device_(model.device()), rows_(n_rows), pool_(n_blocks), index_(n_blocks) {
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

  int rows() const { return static_cast<int>(rows_.size()); }
  int blocks(int row) const { return static_cast<int>(rows_[row].blocks.size()); }

  /// Makes room in a row for this many positions in total. If too few blocks are free, returns false and
  /// changes nothing.
  virtual bool reserve(int row, int positions) {
    Row& own = rows_[row];
    if (blocks_for(positions) > blocks(row) + pool_.free()) return false;
    while (blocks(row) < blocks_for(positions)) {
      own.blocks.push_back(pool_.take());
      index_.erase(own.blocks.back());
      own.changed = true;
    }
    return true;
  }

  /// Starts an empty row with known blocks that hold the first tokens of `text`. The last token of `text` is
  /// never among them, because the logits after it are needed.
  virtual void share(int row, std::span<const int> text) {
    Row& own = rows_[row];
    for (; std::ssize(text) > kBlockSize; text = text.subspan(kBlockSize)) {
      const std::optional<int> block = index_.find(own.ids.back(), text.first(kBlockSize));
      if (!block) return;
      pool_.share(*block);
      own.blocks.push_back(*block);
      own.ids.push_back(index_.id(*block));
      own.tokens.insert(own.tokens.end(), text.begin(), text.begin() + kBlockSize);
      own.length += kBlockSize;
      own.changed = true;
    }
  }

  /// Call after a pass with the tokens that a row fed: its full blocks become known, so others can share
  /// them.
  virtual void remember(int row, std::span<const int> tokens) {
    Row& own = rows_[row];
    own.tokens.insert(own.tokens.end(), tokens.begin(), tokens.end());
    for (std::size_t n = own.ids.size(); n * kBlockSize <= own.tokens.size(); ++n) {
      const auto in_block = std::span(own.tokens).subspan((n - 1) * kBlockSize, kBlockSize);
      own.ids.push_back(index_.insert(own.ids.back(), in_block, own.blocks[n - 1]));
    }
  }

  /// reserve() must have made room, or this throws std::logic_error.
  void append(int row, int count) override {
    Row& own = rows_[row];
    if (blocks_for(own.length + count) > blocks(row))
      throw std::logic_error("reserve() makes room for append()");
    own.length += count;
    Tensor line = table_.rows(row, 1);
    if (std::exchange(own.changed, false)) device_.copy_from_host(own.blocks, line);
    most_ = std::max(most_, pool_.taken());
    used_ += own.length;
    taken_ += kBlockSize * static_cast<double>(own.blocks.size());
  }

  KeysValues layer(int index) override { return layers_[index]; }

  /// Frees the blocks after that length, including those reserved in advance. A text that becomes shorter
  /// keeps only whole blocks and their tokens, because a known block is never overwritten.
  void truncate(int row, int length) override {
    Row& own = rows_[row];
    const int known = static_cast<int>(own.tokens.size()) / kBlockSize * kBlockSize;
    if (length < known) length = length / kBlockSize * kBlockSize;
    own.length = std::min(own.length, length);
    own.tokens.resize(std::min<std::size_t>(own.tokens.size(), own.length));
    own.ids.resize(std::min<std::size_t>(own.ids.size(), own.length / kBlockSize + 1));
    for (; blocks(row) > blocks_for(own.length); own.blocks.pop_back()) {
      pool_.release(own.blocks.back(), index_.id(own.blocks.back()) > 0);
    }
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
    std::vector<int> tokens = {};  // tokens at the row's positions
    std::vector<long> ids = {0};   // 0, then the id of the known block with each full block's key
    int length = 0;
    bool changed = false;  // whether its row of the table is outdated
  };

  Device& device_;
  Tensor table_;                    // [n_rows, blocks per context] int32, shared by all layers
  std::vector<KeysValues> layers_;  // [n_blocks, n_kv_head, kBlockSize, head_size] each
  std::vector<Row> rows_;
  BlockPool pool_;
  PrefixIndex index_;
  int most_ = 0;
  double used_ = 0.0, taken_ = 0.0;
};

}  // namespace staircase
