// Keys and values of the tokens seen so far, in memory for the whole context.
#pragma once

#include <vector>

#include "common/model/model.h"

namespace staircase {

/// Allocated once, with room for all positions of the model in each row: nothing is copied until it is full.
class StaticKvCache : public KvCache {
 public:
  explicit StaticKvCache(Model& model, int n_rows = 1) : device_(model.device()), lengths_(n_rows) {
    const ModelConfig& config = model.config();
    for (int l = 0; l < config.n_layer; ++l) {
      const std::vector<std::int64_t> shape = model.kv_shape(n_rows, config.n_positions);
      layers_.push_back({model.device().allocate(model.kv_dtype(), shape),
                         model.device().allocate(model.kv_dtype(), shape)});
    }
  }

  /// Positions that a row has room for.
  int capacity() const { return static_cast<int>(layers_[0].keys.dim(2)); }

  int length(int row) const override { return lengths_[row]; }

  void append(int row, int count) override { lengths_[row] += count; }

  KeysValues layer(int index) override { return layers_[index]; }

  void truncate(int row, int length) override { lengths_[row] = length; }

  /// Removes the first `count` positions of a row and moves the others to the start. Their keys and values
  /// stay as computed for each token's earlier position.
  void slide(int row, int count) override {
    set_slid(row, slid(row) + count);
    lengths_[row] -= count;
    copy(row, count, row);
  }

  /// Copies row `from` to row `to`.
  void copy_row(int from, int to) override {
    set_slid(to, slid(from));
    lengths_[to] = lengths_[from];
    copy(from, 0, to);
  }

  CacheUse use() const override {
    const std::size_t bytes = layers_.size() * 2 * layers_[0].keys.bytes();
    return {.bytes = bytes, .allocated = bytes, .copied = copied_};
  }

 private:
  /// Copies entries of row `from`, from position `first` on, to the start of row `to`: lengths_[to] of them.
  void copy(int from, int first, int to) {
    for (const KeysValues& layer : layers_) {
      for (const Tensor& entries : {layer.keys, layer.values}) {
        Tensor row = entries.rows(to, 1);
        device_.copy_positions(entries.rows(from, 1), first, lengths_[to], row, 0);
        copied_ += row.bytes() / capacity() * lengths_[to];
      }
    }
  }

  Device& device_;
  std::vector<KeysValues> layers_;  // [n_rows, n_kv_head, n_positions, head_size] each
  std::vector<int> lengths_;
  std::size_t copied_ = 0;  // in bytes, over the keys and values of all layers
};

}  // namespace staircase
