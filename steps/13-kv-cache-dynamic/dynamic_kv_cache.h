// Keys and values of the tokens seen so far, in memory that grows with them.
#pragma once

#include <vector>

#include "common/model/model.h"

namespace staircase {

/// Grows like a concatenation: each growth allocates memory for all positions and copies the old ones.
class DynamicKvCache : public KvCache {
 public:
  explicit DynamicKvCache(Model& model) : model_(model), layers_(model.config().n_layer) {}

  int length(int /*row*/) const override { return length_; }

  void append(int /*row*/, int count) override {
    use_.bytes = 0;
    for (KeysValues& layer : layers_) layer = {grown(layer.keys, count), grown(layer.values, count)};
    length_ += count;
  }

  KeysValues layer(int index) override { return layers_[index]; }

  void truncate(int /*row*/, int length) override { length_ = length; }

  /// Bytes that all layers hold now, and bytes that all growths allocated and copied (old positions only).
  CacheUse use() const override { return use_; }

 private:
  /// Keys or values of one layer, [1, n_kv_head, length, head_size], with room for `count` more positions.
  Tensor grown(const Tensor& old, int count) {
    const int capacity = length_ + count;
    Tensor larger = model_.device().allocate(model_.kv_dtype(), model_.kv_shape(1, capacity));
    if (length_ > 0) model_.device().copy_positions(old, 0, length_, larger, 0);
    use_.bytes += larger.bytes();
    use_.allocated += larger.bytes();
    use_.copied += larger.bytes() / capacity * length_;
    return larger;
  }

  Model& model_;
  std::vector<KeysValues> layers_;
  int length_ = 0;
  CacheUse use_;
};

}  // namespace staircase
