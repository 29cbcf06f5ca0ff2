// Takes texts through a model with a paged cache, and decides which of them wait for blocks.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "common/decoding/model_engine.h"
#include "paged_kv_cache.h"

namespace staircase {

struct PagedOptions {
  std::optional<int> blocks = {};  ///< of the pool; by default enough for a whole context in each place
};

inline void add_options(OptionSink& sink, PagedOptions& options) {
  sink.add("--kv-blocks", &options.blocks, "number of cache blocks, 16 positions each", at_least(1));
}

/// First come, first served: a text waits until there are blocks for it, and until earlier texts have theirs.
/// Rows do not slide, so no text may outgrow its row; its newest token needs no position.
class PagedEngine : public ModelEngine {
 public:
  PagedEngine(Model& model, PagedKvCache& cache)
      : ModelEngine(model, cache), cache_(cache), arrivals_(cache.rows()) {}

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
    return has_room(r, static_cast<int>(text.size())) ? text.subspan(cache_.length(r)) : text.first(0);
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

 private:
  bool grows(int r) const { return cache_.blocks(r) > 0; }

  /// Whether the text in slot r has blocks for this many positions, perhaps from now on.
  bool has_room(int r, int positions) {
    if (arrivals_[r] == 0) arrivals_[r] = ++last_arrival_;
    if (!grows(r) && earlier_one_waits(r)) return false;
    return cache_.reserve(r, positions);
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
  int last_arrival_ = 0, preempted_ = 0;
};

}  // namespace staircase
