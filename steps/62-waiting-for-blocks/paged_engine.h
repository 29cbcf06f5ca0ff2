// Runs a batch of texts through a model with a paged cache.
#pragma once

#include <optional>

#include "common/decoding/model_engine.h"
#include "paged_kv_cache.h"

namespace staircase {

struct PagedOptions {
  std::optional<int> blocks = {};  ///< in the pool; by default enough for a whole context in each slot
};

inline void add_options(OptionSink& sink, PagedOptions& options) {
  sink.add("--kv-blocks", &options.blocks, "number of cache blocks, 16 positions each", at_least(1));
}

/// A text joins when there are enough blocks for its maximum length. Rows do not slide, so no text may
/// outgrow its row; the newest token needs no position.
class PagedEngine : public ModelEngine {
 public:
  PagedEngine(Model& model, PagedKvCache& cache) : ModelEngine(model, cache), cache_(cache) {}

  bool make_room(const Row& row, int r) override {
    const int to_come = row.options.stopping.max_new_tokens - row.new_tokens - 1;
    return cache_.reserve(r, static_cast<int>(row.tokens.size()) + to_come);
  }

  std::span<const int> prepare(const Row& row, int r) override {
    return std::span(row.tokens).subspan(cache_.length(r));
  }

  void move_row(int from, int to) override { cache_.swap_rows(from, to); }

 private:
  PagedKvCache& cache_;
};

}  // namespace staircase
