// Keys and values of the tokens seen so far, in memory for the whole context.
#pragma once

#include <vector>

#include "common/model/model.h"

namespace staircase {

/// Allocated once, with room for all positions of the model: nothing is copied until it is full.
class StaticKvCache : public KvCache {
 public:
  explicit StaticKvCache(Model& model) : device_(model.device()) {
    const ModelConfig& config = model.config();
    for (int l = 0; l < config.n_layer; ++l) {
      const std::vector<std::int64_t> shape = model.kv_shape(1, config.n_positions);
      layers_.push_back({model.device().allocate(model.kv_dtype(), shape),
                         model.device().allocate(model.kv_dtype(), shape)});
    }
  }

  /// Positions that a row has room for.
  int capacity() const { return static_cast<int>(layers_[0].keys.dim(2)); }

  int length(int /*row*/) const override { return length_; }

  void append(int /*row*/, int count) override { length_ += count; }

  KeysValues layer(int index) override { return layers_[index]; }

  void truncate(int /*row*/, int length) override { length_ = length; }

  /// Removes the first `count` positions of a row and moves the others to the start. Their keys and values
  /// stay as computed for each token's earlier position.
  void slide(int row, int count) override {
    set_slid(row, slid(row) + count);
    length_ -= count;
    for (const KeysValues& layer : layers_) {
      for (Tensor entries : {layer.keys, layer.values}) {
        device_.copy_positions(entries, count, length_, entries, 0);
        copied_ += entries.bytes() / capacity() * length_;
      }
    }
  }

  CacheUse use() const override {
    const std::size_t bytes = layers_.size() * 2 * layers_[0].keys.bytes();
    return {.bytes = bytes, .allocated = bytes, .copied = copied_};
  }

 private:
  Device& device_;
  std::vector<KeysValues> layers_;  // [1, n_kv_head, n_positions, head_size] each
  int length_ = 0;
  std::size_t copied_ = 0;  // in bytes, over the keys and values of all layers
};

}  // namespace staircase
