// A cache of keys and values for one sequence, allocated once for the whole context.
#pragma once

#include <vector>

#include "common/config.h"
#include "common/error.h"
#include "common/kv_cache.h"

namespace staircase::bench {

class StaticCache final : public KvCache {
 public:
  StaticCache(Device& device, const Gpt2Config& config, DType dtype) : capacity_(config.n_positions) {
    for (int l = 0; l < config.n_layer; ++l) {
      layers_.push_back({device.allocate(dtype, {1, config.n_head, capacity_, config.head_size()}),
                         device.allocate(dtype, {1, config.n_head, capacity_, config.head_size()})});
    }
  }

  int length(int) const override { return length_; }

  void append(int, int count) override {
    if (length_ + count > capacity_) throw Error("the cache holds {} positions and is full", capacity_);
    length_ += count;
    filled_ = std::max(filled_, length_);
  }

  KeysValues layer(int index) override { return layers_[static_cast<std::size_t>(index)]; }

  void truncate(int, int length) override { length_ = length; }

  /// Goes back, or forward again as far as the cache has ever been filled, to measure at any length without
  /// computing the prompt anew. What was overwritten meanwhile belongs to another text, which costs the same.
  void jump_to(int length) {
    if (length > filled_) throw Error("the cache was filled up to {}, not {}", filled_, length);
    length_ = length;
  }

  CacheUse use() const override {
    const std::size_t bytes = layers_.size() * 2 * layers_[0].keys.bytes();
    return {bytes, bytes, 0};
  }

 private:
  std::vector<KeysValues> layers_;
  std::int64_t capacity_;
  int length_ = 0;
  int filled_ = 0;
};

}  // namespace staircase::bench
