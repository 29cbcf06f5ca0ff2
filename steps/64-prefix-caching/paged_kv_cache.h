// Keys and values in blocks of a pool that all rows share (Kwon et al. 2023, section 4).
#pragma once

#include <algorithm>
#include <deque>
#include <map>
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
  bool prefix_caching = true;
  std::optional<int> blocks = {};  ///< of the pool; as many as hold a whole context in each place
};

inline void add_options(OptionSink& sink, PagedOptions& options) {
  sink.add("--kv-blocks", &options.blocks, "how many blocks of 16 positions the cache has", at_least(1));
  sink.add("--prefix-caching", &options.prefix_caching, "reuse cached prompt prefixes");
}

/// A row takes a free block of the pool when it needs one. Its line of the block table says which it has.
class PagedKvCache : public KvCache {
 public:
  PagedKvCache(Model& model, int n_rows, int n_blocks)
      : device_(model.device()), rows_(n_rows), free_(n_blocks), blocks_(n_blocks) {
    const ModelConfig& config = model.config();
    table_ = device_.allocate(DType::kInt32, {n_rows, blocks_for(config.n_positions)});
    const std::vector<std::int64_t> shape = model.kv_shape(n_blocks, kBlockSize);
    for (int l = 0; l < config.n_layer; ++l) {
      layers_.push_back(
          {device_.allocate(model.kv_dtype(), shape), device_.allocate(model.kv_dtype(), shape), table_});
    }
    std::iota(free_.begin(), free_.end(), 0);
  }

  int length(int row) const override { return rows_[row].length; }

  /// Makes room in a row for so many positions altogether. False where too few blocks are free, or where a
  /// text that came earlier waits for its first one: then this one waits as well. A row without a block
  /// begins with those that hold the first tokens of `text`.
  bool reserve(int row, int positions, std::span<const int> text = {}) {
    Row& own = rows_[row];
    if (own.turn == 0) own.turn = ++turns_;
    const auto goes_first = [&](const Row& other) {
      return other.turn > 0 && other.turn < own.turn && other.blocks.empty();
    };
    const bool joins = own.blocks.empty();
    if (joins && std::ranges::any_of(rows_, goes_first)) return false;
    if (joins) share(own, text);
    if (blocks_for(positions) > std::ssize(own.blocks) + std::ssize(free_)) {
      if (joins) cut(own, 0);
      return false;
    }
    // A text that was preempted finds its own blocks: nobody has shared them with it.
    if (!std::exchange(own.has_joined, true))
      found_ += own.length, joined_ += static_cast<double>(text.size());
    while (std::ssize(own.blocks) < blocks_for(positions)) {
      const int block = free_.front();
      forget(blocks_[block]);
      blocks_[block].users = 1;
      own.blocks.push_back(block);
      free_.pop_front();
      own.changed = true;
    }
    return true;
  }

  /// Behind a pass: the tokens that a row fed. Blocks that are full of them can be found from now on. Behind
  /// a block whose name is known already, the row goes on as if it had the known one.
  void remember(int row, std::span<const int> tokens) {
    Row& own = rows_[row];
    for (const int token : tokens) {
      own.tokens.push_back(token);
      if (std::ssize(own.tokens) < kBlockSize) continue;
      const int block = own.blocks[own.full++];
      const auto [known, is_new] = known_.try_emplace({own.before, std::exchange(own.tokens, {})}, block);
      if (is_new) blocks_[block].name = known, blocks_[block].id = ++ids_;
      own.before = blocks_[known->second].id;
    }
  }

  /// Each row that grows has room for its next token. Where no block is left, the text that came last gives
  /// all of its own back: it waits for its turn again.
  void make_room() {
    const auto turn = [](const Row& row) { return row.blocks.empty() ? 0 : row.turn; };
    for (int row = 0; row < std::ssize(rows_); ++row) {
      while (!rows_[row].blocks.empty() && !reserve(row, length(row) + 1)) {
        cut(*std::ranges::max_element(rows_, {}, turn), 0);
        ++preempted_;
      }
    }
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
    if (length == 0) rows_[row].turn = 0, rows_[row].has_joined = false;
    cut(rows_[row], length);
  }

  /// Each becomes what the other is. No key moves: numbers of blocks do.
  void swap_rows(int a, int b) {
    std::swap(rows_[a], rows_[b]);
    rows_[a].changed = rows_[b].changed = true;
  }

  /// Texts that grow: the others in the batch wait for blocks.
  int growing() const {
    return std::ranges::count_if(rows_, [](const Row& row) { return !row.blocks.empty(); });
  }
  int most_blocks() const { return most_; }     ///< taken at one time
  int preempted() const { return preempted_; }  ///< times that a row gave its blocks back
  double found() const { return found_; }       ///< tokens of the texts that joined that were in the cache
  double joined() const { return joined_; }     ///< all of their tokens
  /// Of the positions in taken blocks, the part that is in use; the mean of all passes: each append is one.
  double filled() const { return used_ / std::max(taken_, 1.0); }
  CacheUse use() const override {
    const std::size_t bytes = layers_.size() * 2 * layers_[0].keys.bytes() + table_.bytes();
    return {.bytes = bytes, .allocated = bytes};
  }

 private:
  /// What is in a full block: the block before it, or 0, and its tokens. Blocks of one name are equal.
  using Name = std::pair<long, std::vector<int>>;
  using Known = std::map<Name, int>;
  struct Block {
    int users = 0;  // rows that have it
    long id = 0;    // never given twice; 0 if the block has no name
    Known::iterator name = {};
  };
  struct Row {
    std::vector<int> blocks = {};
    std::vector<int> tokens = {};  // behind its full blocks
    int full = 0;                  // how many of these there are,
    long before = 0;               // and the last one's id
    int length = 0;
    int turn = 0;             // lower for a text that came earlier; 0 for none
    bool has_joined = false;  // perhaps it was preempted since
    bool changed = false;     // since its line of the table was written
  };

  /// The row keeps its turn. To 0, for a block that others may find is never written again. Of those that are
  /// free now, the last of a row come first; what nobody can find is taken before all others.
  void cut(Row& own, int length) {
    if (length > 0) throw std::logic_error("a row of shared blocks is cut to nothing or not at all");
    for (; !own.blocks.empty(); own.blocks.pop_back()) {
      const int block = own.blocks.back();
      if (--blocks_[block].users > 0) continue;
      // What nobody can find is taken first, and then what was not used for longest, the end of a text before
      // its beginning.
      blocks_[block].id == 0 ? free_.push_front(block) : free_.push_back(block);
    }
    own = {.turn = own.turn, .has_joined = own.has_joined};
  }

  /// The row has the blocks that hold the first tokens of a text, but not the last one: its logits are
  /// needed. One that has to wait after all gives them back.
  void share(Row& own, std::span<const int> text) {
    for (; std::ssize(text) > kBlockSize; text = text.subspan(kBlockSize)) {
      const auto known = known_.find({own.before, {text.begin(), text.begin() + kBlockSize}});
      if (known == known_.end()) return;
      Block& block = blocks_[known->second];
      if (block.users++ == 0) std::erase(free_, known->second);
      own.blocks.push_back(known->second);
      own.length += kBlockSize;
      own.full += 1;
      own.before = block.id;
      own.changed = true;
    }
  }

  /// Nobody finds the block any more.
  void forget(Block& block) {
    if (block.id > 0) known_.erase(block.name);
    block = {};
  }

  Device& device_;
  Tensor table_;                    // [n_rows, blocks of a context] int32, of all layers
  std::vector<KeysValues> layers_;  // [n_blocks, n_head, kBlockSize, head_size] each
  std::vector<Row> rows_;
  std::deque<int> free_;  // blocks that no row has; the first one is the next to be taken
  std::vector<Block> blocks_;
  Known known_;  // the blocks that can be found
  long ids_ = 0;
  double found_ = 0.0, joined_ = 0.0;
  int most_ = 0, turns_ = 0, preempted_ = 0;
  double used_ = 0.0, taken_ = 0.0;
};

/// With a cache that has an empty row for each place. No text may be longer than the context: none slides.
/// A row feeds nothing until it has room for its text.
inline Engine make_engine(Model& model, PagedKvCache& cache, bool prefix_caching = true) {
  const auto feed = [&, prefix_caching](const Row& row, int r) {
    if (r == 0) cache.make_room();  // a pass begins
    const std::span<const int> text = row.tokens;
    const bool goes_on = cache.reserve(r, std::ssize(text), prefix_caching ? text : text.first(0));
    return goes_on ? text.subspan(cache.length(r)) : text.first(0);
  };
  const auto forward = [&](auto sequences) {
    const std::span<float> logits = model.next_logits(sequences, &cache);
    for (int r = 0; r < std::ssize(sequences); ++r) cache.remember(r, sequences[r]);
    return logits;
  };
  const auto move_row = [&](int from, int to) { cache.swap_rows(from, to); };
  const auto clear_row = [&](int r) { cache.truncate(r, 0); };
  return {model.config().eos_token_id, feed, forward, move_row, clear_row};
}

}  // namespace staircase
