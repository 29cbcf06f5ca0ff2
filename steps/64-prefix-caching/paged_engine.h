// Takes texts through a model with a paged cache, and decides which of them wait for blocks.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "common/decoding/model_engine.h"
#include "paged_kv_cache.h"

namespace staircase {

struct PagedOptions {
  bool prefix_caching = true;
  std::optional<int> blocks = {};  ///< of the pool; by default enough for a whole context in each place
};

inline void add_options(OptionSink& sink, PagedOptions& options) {
  sink.add("--kv-blocks", &options.blocks, "number of cache blocks, 16 positions each", at_least(1));
  sink.add("--prefix-caching", &options.prefix_caching, "reuse cached prompt prefixes");
}

/// First come, first served: a text waits until there are blocks for it, and until earlier texts have theirs.
/// Rows do not slide, so no text may outgrow its row; its newest token needs no position.
class PagedEngine : public ModelEngine {
 public:
  PagedEngine(Model& model, PagedKvCache& cache, bool prefix_caching = true)
      : ModelEngine(model, cache), cache_(cache), arrivals_(cache.rows()), prefix_caching_(prefix_caching) {}

  /// If no block is free for the next token of a text, the newest text releases all of its own and waits for
  /// its turn again.
  void begin_pass(std::span<const Row> rows) override {
    for (int r = 0; r < std::ssize(rows); ++r) {
      while (grows(r) && !cache_.reserve(r, static_cast<int>(rows[r].tokens.size()))) {
        cache_.truncate(last_to_come(), 0);
        ++preempted_;
      }
    }
  }

  std::span<const int> prepare(const Row& row, int r) override {
    const std::span<const int> text = row.tokens;
    return has_room(r, text) ? text.subspan(cache_.length(r)) : text.first(0);
  }

  Logits forward(std::span<const std::span<const int>> sequences) override {
    const Logits logits = ModelEngine::forward(sequences);
    for (int r = 0; r < std::ssize(sequences); ++r) cache_.remember(r, sequences[r]);
    return logits;
  }

  void move_row(int from, int to) override {
    cache_.swap_rows(from, to);
    std::swap(arrivals_[from], arrivals_[to]);
  }

  void clear_row(int r) override {
    cache_.truncate(r, 0);
    arrivals_[r] = 0;
  }

  int preempted() const { return preempted_; }  ///< times that a text released its blocks
  double found() const { return found_; }       ///< tokens of joining texts that were in the cache
  double joined() const { return joined_; }     ///< all of their tokens

 private:
  bool grows(int r) const { return cache_.blocks(r) > 0; }

  /// Whether the text in slot r has blocks, perhaps from now on.
  bool has_room(int r, std::span<const int> text) {
    if (arrivals_[r] == 0) arrivals_[r] = ++last_arrival_;
    const bool joins = !grows(r);
    if (joins && earlier_one_waits(r)) return false;
    if (joins && prefix_caching_) cache_.share(r, text);
    if (!cache_.reserve(r, static_cast<int>(text.size()))) {
      if (joins) cache_.truncate(r, 0);
      return false;
    }
    if (arrivals_[r] > last_joined_) {  // a preempted text may find its own blocks: it counts once
      last_joined_ = arrivals_[r];
      found_ += cache_.length(r);
      joined_ += static_cast<double>(text.size());
    }
    return true;
  }

  bool earlier_one_waits(int r) const {
    for (int other = 0; other < cache_.rows(); ++other) {
      if (arrivals_[other] > 0 && arrivals_[other] < arrivals_[r] && !grows(other)) return true;
    }
    return false;
  }

  /// Among those that grow.
  int last_to_come() const {
    int last = 0;
    for (int r = 1; r < cache_.rows(); ++r) {
      if (!grows(last) || (grows(r) && arrivals_[r] > arrivals_[last])) last = r;
    }
    return last;
  }

  PagedKvCache& cache_;
  std::vector<int> arrivals_;  // of the text in each place, counted from 1; 0 if there is none
  const bool prefix_caching_;
  int last_arrival_ = 0, preempted_ = 0;
  int last_joined_ = 0;  // the arrival number of the newest text that joined_ counts
  double found_ = 0.0, joined_ = 0.0;
};

}  // namespace staircase
