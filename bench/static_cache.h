// A cache of keys and values for one or more sequences, allocated once.
#pragma once

#include <algorithm>
#include <vector>

#include "common/base/error.h"
#include "common/model/config.h"
#include "common/model/kv_cache.h"

namespace staircase::bench {

class StaticCache final : public KvCache {
 public:
  /// Room for `capacity` positions in each row; 0: for the model's whole context.
  StaticCache(Device& device, const Gpt2Config& config, DType dtype, int rows = 1, int capacity = 0)
      : capacity_(capacity == 0 ? config.n_positions : capacity), rows_(static_cast<std::size_t>(rows)) {
    const std::vector<std::int64_t> shape{rows, config.n_head, capacity_, config.head_size()};
    for (int l = 0; l < config.n_layer; ++l) {
      layers_.push_back({device.allocate(dtype, shape), device.allocate(dtype, shape)});
    }
  }

  int length(int row) const override { return rows_.at(static_cast<std::size_t>(row)).length; }

  void append(int row, int count) override {
    auto& [length, filled] = rows_.at(static_cast<std::size_t>(row));
    if (length + count > capacity_) throw Error("the cache holds {} positions and is full", capacity_);
    length += count;
    filled = std::max(filled, length);
  }

  KeysValues layer(int index) override { return layers_[static_cast<std::size_t>(index)]; }

  void truncate(int row, int length) override { rows_.at(static_cast<std::size_t>(row)).length = length; }

  /// All rows go back, or forward again as far as they have ever been filled, to measure at any length
  /// without computing the prompt anew. What was overwritten meanwhile belongs to another text, which costs
  /// the same.
  void jump_to(int length) {
    for (Row& row : rows_) {
      if (length > row.filled) throw Error("the cache was filled up to {}, not {}", row.filled, length);
      row.length = length;
    }
  }

  CacheUse use() const override {
    const std::size_t bytes = layers_.size() * 2 * layers_[0].keys.bytes();
    return {bytes, bytes, 0};
  }

 private:
  struct Row {
    int length = 0;
    int filled = 0;  ///< the longest that it has been
  };

  std::vector<KeysValues> layers_;
  std::int64_t capacity_;
  std::vector<Row> rows_;
};

}  // namespace staircase::bench
