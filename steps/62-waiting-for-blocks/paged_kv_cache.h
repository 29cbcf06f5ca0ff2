// Keys and values in blocks of a pool that all rows share (Kwon et al. 2023, section 4).
#pragma once

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "scheduler.h"

namespace staircase {

constexpr int kBlockSize = 16;  ///< positions of a block
/// Blocks that hold so many positions.
constexpr int blocks_for(int positions) {
  return (positions + kBlockSize - 1) / kBlockSize;
}

struct PagedOptions {
  std::optional<int> blocks = {};  ///< of the pool; as many as hold a whole context in each place
};

inline void add_options(OptionSink& sink, PagedOptions& options) {
  sink.add("--kv-blocks", &options.blocks, "how many blocks of 16 positions the cache has", at_least(1));
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

  /// Makes room in a row for so many positions altogether. False where too few blocks are free, or where a
  /// text that came earlier waits for its first one: then this one waits as well.
  bool reserve(int row, int positions) {
    Row& own = rows_[row];
    if (own.turn == 0) own.turn = ++turns_;
    const auto goes_first = [&](const Row& other) {
      return other.turn > 0 && other.turn < own.turn && other.blocks.empty();
    };
    if (own.blocks.empty() && std::ranges::any_of(rows_, goes_first)) return false;
    if (blocks_for(positions) > std::ssize(own.blocks) + std::ssize(free_)) return false;
    while (std::ssize(own.blocks) < blocks_for(positions)) {
      own.blocks.push_back(free_.back());
      free_.pop_back();
      own.changed = true;
    }
    return true;
  }

  /// There must be room.
  void append(int row, int count) override {
    Row& own = rows_[row];
    own.length += count;
    Tensor line = table_.rows(row, 1);
    if (std::exchange(own.changed, false)) device_.copy_from_host(own.blocks, line);
    most_ = std::max(most_, static_cast<int>(layers_[0].keys.dim(0) - std::ssize(free_)));
    used_ += own.length;
    taken_ += kBlockSize * static_cast<double>(own.blocks.size());
  }

  KeysValues layer(int index) override { return layers_[index]; }
  /// Blocks behind that length are free again. At 0 the text has left.
  void truncate(int row, int length) override {
    Row& own = rows_[row];
    if (length == 0) own.turn = 0;
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
    int turn = 0;          // lower for a text that came earlier; 0 for none
    bool changed = false;  // since its line of the table was written
  };

  Device& device_;
  Tensor table_;                    // [n_rows, blocks of a context] int32, of all layers
  std::vector<KeysValues> layers_;  // [n_blocks, n_head, kBlockSize, head_size] each
  std::vector<Row> rows_;
  std::vector<int> free_;  // blocks; the last one is the next to be taken
  int most_ = 0, turns_ = 0;
  double used_ = 0.0, taken_ = 0.0;
};

/// With a cache that has an empty row for each place. No text may be longer than the context: none slides.
/// A row feeds nothing until it has room for all that may become of its text.
inline Engine make_engine(Model& model, PagedKvCache& cache) {
  const auto feed = [&](const Row& row, int r) {
    const std::span<const int> text = row.tokens;
    const int to_come = row.options.stopping.max_new_tokens - row.new_tokens - 1;
    return cache.reserve(r, std::ssize(text) + to_come) ? text.subspan(cache.length(r)) : text.first(0);
  };
  const auto forward = [&](auto sequences) { return model.next_logits(sequences, &cache); };
  const auto move_row = [&](int from, int to) { cache.swap_rows(from, to); };
  const auto clear_row = [&](int r) { cache.truncate(r, 0); };
  return {model.config().eos_token_id, feed, forward, move_row, clear_row};
}

}  // namespace staircase
