// A paged cache that frees the blocks of layers with a window once the window has passed them. It is given:
// no lesson writes it.
#pragma once

#include <algorithm>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/decoding/window_estimate.h"
#include "paged_kv_cache.h"

namespace staircase {

/// Layers that see all positions keep all blocks of a row, as in PagedKvCache. Layers with a window share a
/// second, smaller pool, in which a row has only the blocks that its next tokens see. A text shares a prefix
/// if the first pool still holds all of it, and the second the blocks in the window at its end.
class WindowedKvCache : public PagedKvCache {
 public:
  static constexpr int kMostAtOnce = Model::kPart;  ///< new tokens per pass

  /// The first `slots` rows can all grow at the same time if `n_blocks` blocks are enough. The other rows
  /// only keep texts.
  WindowedKvCache(Model& model, int n_rows, int n_blocks, int slots)
      : PagedKvCache(model, n_rows, n_blocks, longest_window(model.config()) + 1),
        window_(longest_window(model.config())),
        window_rows_(n_rows),
        // A row has no more blocks here than in the other pool, and rows share blocks in both.
        window_pool_(window_ > 0 ? std::min(n_blocks, slots * most_blocks(window_)) : 0),
        ids_(window_pool_.free()) {
    if (window_ == 0) return;
    window_table_ = device_.allocate(DType::kInt32, {n_rows, blocks_for(model.config().n_positions)});
    const std::vector<std::int64_t> shape = model.kv_shape(window_pool_.free(), kBlockSize);
    for (int l = 0; l < model.config().n_layer; ++l) {
      in_window_.push_back(model.window(l) <= window_);
      if (!in_window_[l]) continue;
      layers_[l] = {device_.allocate(model.kv_dtype(), shape), device_.allocate(model.kv_dtype(), shape),
                    window_table_};
    }
  }
  /// A cache in which all rows can grow.
  WindowedKvCache(Model& model, int n_rows, int n_blocks)
      : WindowedKvCache(model, n_rows, n_blocks, n_rows) {}

  /// A pass writes all of its keys before its first token reads any.
  int most_at_once() const override { return window_ > 0 ? kMostAtOnce : PagedKvCache::most_at_once(); }

  bool reserve(int row, int positions) override {
    if (window_ == 0) return PagedKvCache::reserve(row, positions);
    WindowRow& own = window_rows_[row];
    const int wanted = std::max(own.promised, std::min(most_blocks(window_), blocks_for(positions)));
    const auto missing = [&] {  // blocks that rows may still take, this one included
      int count = std::max(0, wanted - own.held());
      for (const WindowRow& other : window_rows_) {
        if (&other != &own) count += std::max(0, other.promised - other.held());
      }
      return count;
    };
    if (missing() > window_pool_.free()) release_passed();
    if (missing() > window_pool_.free() || !PagedKvCache::reserve(row, positions)) return false;
    own.promised = wanted;
    return true;
  }

  void share(int row, std::span<const int> text) override {
    PagedKvCache::share(row, text);
    if (window_ == 0) return;
    const std::vector<long>& ids = rows_[row].ids;
    int count = blocks(row);  // blocks that both pools have
    for (int b = count - 1; b >= first_seen(count * kBlockSize); --b) {
      if (!found_.contains(ids[b + 1])) count = b;
    }
    PagedKvCache::truncate(row, count * kBlockSize);
    WindowRow& own = window_rows_[row];
    own = {.first = first_seen(length(row)), .start = length(row), .known = count, .changed = true};
    for (int b = own.first; b < count; ++b) {
      own.blocks.push_back(found_.at(ids[b + 1]));
      window_pool_.share(own.blocks.back());
    }
  }

  /// Makes room in an empty row for a text whose keys and values come from a file; no other row may grow yet.
  /// Returns the first position to fill in layers without a window: other texts hold the earlier ones. Layers
  /// with a window start at first_kept(). Returns nothing if there is no room, or if the position is before
  /// `least`.
  std::optional<int> take_back(int row, std::span<const int> text, int least) {
    PagedKvCache::share(row, text);
    const int shared = length(row), count = static_cast<int>(text.size());
    std::vector<int> blocks;  // in layers with a window: another text's block, or -1 for a new one
    for (int b = first_seen(count); window_ > 0 && b < blocks_for(count); ++b) {
      const auto known = b < shared / kBlockSize ? found_.find(rows_[row].ids[b + 1]) : found_.end();
      blocks.push_back(known != found_.end() ? known->second : -1);
    }
    const bool has_room = std::ranges::count(blocks, -1) <= window_pool_.free();
    if (shared < least || !has_room || !PagedKvCache::reserve(row, count)) {
      PagedKvCache::truncate(row, 0);
      return {};
    }
    WindowRow& own = window_rows_[row];
    if (window_ > 0) own = {.first = first_seen(count), .known = first_seen(count), .changed = true};
    for (const int block : blocks) {
      if (block >= 0) window_pool_.share(block);
      own.blocks.push_back(block >= 0 ? block : new_block());
    }
    append(row, count - shared);
    remember(row, text.subspan(shared));
    own.start = count;
    own.promised = own.held();
    return shared;
  }

  /// Whether a layer keeps only a window.
  bool keeps_window(int layer) const { return !in_window_.empty() && in_window_[layer]; }
  /// The first position that layers with a window keep of a text of this length.
  int first_kept(int length) const { return window_ > 0 ? first_seen(length) * kBlockSize : length; }
  /// A row's blocks in layers with a window, by position. Entries before first_kept() are only fillers.
  std::vector<int> window_blocks(int row) const {
    const WindowRow& own = window_rows_[row];
    std::vector<int> line(own.first, own.held() > 0 ? own.blocks[0] : 0);
    line.insert(line.end(), own.blocks.begin(), own.blocks.end());
    return line;
  }

  void remember(int row, std::span<const int> tokens) override {
    PagedKvCache::remember(row, tokens);
    if (window_ == 0) return;
    WindowRow& own = window_rows_[row];
    const std::vector<long>& ids = rows_[row].ids;
    for (; own.known + 1 < std::ssize(ids); ++own.known) {
      if (own.known < own.first) continue;
      const int block = own.blocks[own.known - own.first];
      const long id = ids[own.known + 1];
      if (ids_[block] == 0 && found_.try_emplace(id, block).second) ids_[block] = id;
    }
  }

  void append(int row, int count) override {
    const int start = length(row);
    PagedKvCache::append(row, count);
    if (window_ == 0) return;
    WindowRow& own = window_rows_[row];
    if (count > 0) own.start = start;
    const int missing = blocks_for(length(row)) - own.first - own.held();
    // Frees blocks only when new ones are added, so both changes need one write of the table.
    if (missing > 0) release_before(own, std::min(first_seen(own.start), own.known));
    for (int i = 0; i < missing; ++i) {
      if (window_pool_.free() == 0) release_passed();
      own.blocks.push_back(new_block());
      own.changed = true;
    }
    if (!std::exchange(own.changed, false)) return;
    // No token sees a freed block. In its place, the table lists the row's oldest block.
    Tensor place = window_table_.rows(row, 1);
    device_.copy_from_host(window_blocks(row), place);
  }

  /// If the window of the next token would begin before the row's oldest block, clears the row, and the model
  /// recomputes all of it.
  void truncate(int row, int length) override {
    PagedKvCache::truncate(row, length);
    if (window_ == 0) return;
    WindowRow& own = window_rows_[row];
    if (own.first > first_seen(this->length(row))) PagedKvCache::truncate(row, 0);
    const int kept = blocks_for(this->length(row));
    while (own.held() > 0 && own.first + own.held() > kept) {
      release(own.blocks.back());
      own.blocks.pop_back();
    }
    release_before(own, std::min(first_seen(this->length(row)), own.known));
    if (kept == 0) own = {};
    own.promised = std::min(own.held(), most_blocks(window_));
    own.start = std::min(own.start, this->length(row));
    own.known = std::min(own.known, static_cast<int>(std::ssize(rows_[row].ids)) - 1);
  }

  void swap_rows(int a, int b) override {
    PagedKvCache::swap_rows(a, b);
    std::swap(window_rows_[a], window_rows_[b]);
    window_rows_[a].changed = window_rows_[b].changed = true;
  }

  /// Bytes of the keys and values of a text as long as the context. A text that shares blocks needs fewer.
  static std::size_t text_bytes(const ModelConfig& config, DType dtype) {
    const int longest = longest_window(config);
    return staircase::text_bytes(config, dtype, [&config, longest](int window) {
      return window > longest ? config.n_positions : most_blocks(longest) * kBlockSize;
    });
  }
  /// The memory of a model with such a cache, as one line of text.
  static std::string estimate(const ModelConfig& config, DType dtype) {
    return windowed_memory_estimate(config, dtype, text_bytes(config, dtype));
  }

  CacheUse use() const override {
    std::size_t bytes = table_.bytes() + window_table_.bytes();
    for (const KeysValues& layer : layers_) bytes += layer.keys.bytes() + layer.values.bytes();
    return {.bytes = bytes, .allocated = bytes};
  }

 private:
  struct WindowRow {
    std::deque<int> blocks = {};
    int first = 0;         // the number of text blocks before blocks[0]
    int start = 0;         // the length before the newest pass
    int promised = 0;      // blocks that the row may hold
    int known = 0;         // full blocks that were made findable
    bool changed = false;  // whether its row of the table is outdated

    int held() const { return static_cast<int>(blocks.size()); }
  };

  /// The most blocks of a row in a pass: for the window of its first token, and for its tokens.
  static constexpr int most_blocks(int window) { return blocks_for(window - 2 + kMostAtOnce) + 1; }

  /// The longest window that needs fewer blocks than the context; 0 if no layer has one. It is the same on
  /// all ranks, even on one whose layers have no window.
  static int longest_window(const ModelConfig& config) {
    int longest = 0;
    for (const std::int32_t window : config.windows) {
      const bool saves = window < config.n_positions && most_blocks(window) < blocks_for(config.n_positions);
      if (saves) longest = std::max(longest, static_cast<int>(window));
    }
    return longest;
  }

  /// The first block that a token at this position sees.
  int first_seen(int position) const { return std::max(0, position - window_ + 1) / kBlockSize; }

  /// Allocates a block; one must be free.
  int new_block() {
    const int block = window_pool_.take();
    found_.erase(std::exchange(ids_[block], 0));
    return block;
  }
  void release(int block) { window_pool_.release(block, ids_[block] > 0); }
  void release_before(WindowRow& row, int first) {
    for (; row.held() > 0 && row.first < first; ++row.first) {
      release(row.blocks.front());
      row.blocks.pop_front();
      row.changed = true;
    }
  }
  /// Frees blocks that only tokens before the newest pass saw. While others are free, a row keeps these until
  /// remember() has their tokens, so that they can be found later.
  void release_passed() {
    for (WindowRow& row : window_rows_) release_before(row, first_seen(row.start));
  }

  const int window_;
  std::vector<bool> in_window_ = {};  // for each layer, if there are windows
  Tensor window_table_;  // [n_rows, blocks per context] int32, shared by all layers with a window
  std::vector<WindowRow> window_rows_;
  BlockPool window_pool_;
  std::vector<long> ids_;                // for each block, the id of its twin in the other pool, or 0
  std::unordered_map<long, int> found_;  // from an id to its block
};

}  // namespace staircase
