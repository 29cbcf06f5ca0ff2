// Keys and values of the tokens seen so far. A layer that sees only a window keeps the newest ones.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "common/model/model.h"

namespace staircase {

/// Allocated once. In a layer with a window, each row has a ring of blocks. When all are full, the next
/// position overwrites the oldest one, which no later token sees (Jiang et al. 2023, section 2: the rolling
/// buffer cache). Other layers have room for all positions of the model.
class RingKvCache : public KvCache {
 public:
  static constexpr int kBlock = 16;       ///< positions per block
  static constexpr int kMostAtOnce = 64;  ///< default maximum of new tokens per pass

  explicit RingKvCache(Model& model, int n_rows = 1, int most_at_once = kMostAtOnce)
      : has_windows_(!model.config().windows.empty()),
        most_(most_at_once),
        lengths_(n_rows),
        written_(n_rows) {
    for (int l = 0; l < model.config().n_layer; ++l) {
      layers_.push_back(allocate(model, n_rows, model.window(l)));
    }
  }

  int length(int row) const override { return lengths_[row]; }

  /// A pass writes all of its keys before its first token reads any. So a ring has room for the window that
  /// this token sees and for the new tokens.
  int most_at_once() const override { return has_windows_ ? most_ : KvCache::most_at_once(); }

  void append(int row, int count) override {
    lengths_[row] += count;
    written_[row] = std::max(written_[row], lengths_[row]);
  }

  KeysValues layer(int index) override { return layers_[index]; }

  /// A ring that has wrapped around can go back by as many positions as a pass has. Further back, the next
  /// token's window is overwritten, so the row is cleared and the model recomputes all of it.
  void truncate(int row, int length) override {
    const bool lost = written_[row] > ring_ && written_[row] - length > most_;
    lengths_[row] = lost ? 0 : length;
    if (lengths_[row] == 0) written_[row] = 0;
  }

  CacheUse use() const override {
    std::size_t bytes = 0;
    for (const KeysValues& layer : layers_) bytes += 2 * layer.keys.bytes() + layer.blocks.bytes();
    return {.bytes = bytes, .allocated = bytes};
  }

 private:
  KeysValues allocate(Model& model, int n_rows, int window) {
    const int context = model.config().n_positions;
    const auto memory = [&](std::int64_t rows, int capacity) -> KeysValues {
      const std::vector<std::int64_t> shape = model.kv_shape(rows, capacity);
      return {model.device().allocate(model.kv_dtype(), shape),
              model.device().allocate(model.kv_dtype(), shape)};
    };
    if (window >= context - most_) return memory(n_rows, context);
    const int n = (window - 1 + most_ + kBlock - 1) / kBlock;  // blocks per ring
    KeysValues layer = memory(std::int64_t{n_rows} * n, kBlock);
    std::vector<int> table;  // [n_rows, blocks per context]
    for (int row = 0; row < n_rows; ++row) {
      for (int b = 0; b * kBlock < context; ++b) table.push_back(row * n + b % n);
    }
    layer.blocks = model.device().allocate(DType::kInt32, {n_rows, std::ssize(table) / n_rows});
    model.device().copy_from_host(table, layer.blocks);
    ring_ = std::min(ring_, n * kBlock);
    return layer;
  }

  bool has_windows_;
  int most_;                                    // maximum of new tokens per pass
  int ring_ = std::numeric_limits<int>::max();  // positions in the shortest ring
  std::vector<KeysValues> layers_;              // [n_rows n, n_kv_head, kBlock, head_size] or
                                                // [n_rows, n_kv_head, n_positions, head_size] each
  std::vector<int> lengths_;
  std::vector<int> written_;  // maximum length of each row since it was empty
};

}  // namespace staircase
