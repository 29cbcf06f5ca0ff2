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

/// First come, first served: a text waits until there are blocks for its longest possible form, and until
/// earlier texts have theirs. No text may be longer than the context: none slides.
class PagedEngine : public ModelEngine {
 public:
  PagedEngine(Model& model, PagedKvCache& cache)
      : ModelEngine(model, cache), cache_(cache), arrivals_(cache.rows()) {}

  std::span<const int> prepare(const Row& row, int r) override {
    const std::span<const int> text = row.tokens;
    const int to_come = row.options.stopping.max_new_tokens - row.new_tokens - 1;
    return has_room(r, static_cast<int>(text.size()) + to_come) ? text.subspan(cache_.length(r))
                                                                : text.first(0);
  }

  void move_row(int from, int to) override {
    cache_.swap_rows(from, to);
    std::swap(arrivals_[from], arrivals_[to]);
  }

  void clear_row(int r) override {
    cache_.truncate(r, 0);
    arrivals_[r] = 0;
  }

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

  PagedKvCache& cache_;
  std::vector<int> arrivals_;  // of the text in each place, counted from 1; 0 if there is none
  int last_arrival_ = 0;
};

}  // namespace staircase
