// Keys and values of the tokens seen so far, in memory for the whole context.
#pragma once

#include <vector>

#include "common/model/model.h"

namespace staircase {

/// Allocated once, with room for all positions of the model: nothing is ever copied.
class StaticKvCache : public KvCache {
 public:
  explicit StaticKvCache(Model& model) {
    const ModelConfig& config = model.config();
    for (int l = 0; l < config.n_layer; ++l) {
      const std::vector<std::int64_t> shape = model.kv_shape(1, config.n_positions);
      layers_.push_back({model.device().allocate(model.kv_dtype(), shape),
                         model.device().allocate(model.kv_dtype(), shape)});
    }
  }

  int length(int /*row*/) const override { return length_; }

  void append(int /*row*/, int count) override { length_ += count; }

  KeysValues layer(int index) override { return layers_[index]; }

  void truncate(int /*row*/, int length) override { length_ = length; }

  CacheUse use() const override {
    const std::size_t bytes = layers_.size() * 2 * layers_[0].keys.bytes();
    return {.bytes = bytes, .allocated = bytes};
  }

 private:
  std::vector<KeysValues> layers_;  // [1, n_kv_head, n_positions, head_size] each
  int length_ = 0;
};

}  // namespace staircase
