// Runs a batch of texts through a model with a paged cache.
#pragma once

#include "common/decoding/model_engine.h"
#include "paged_kv_cache.h"

namespace staircase {

/// Rows do not slide, so no text may outgrow its row; the newest token needs no position.
class PagedEngine : public ModelEngine {
 public:
  PagedEngine(Model& model, PagedKvCache& cache) : ModelEngine(model, cache), cache_(cache) {}

  std::span<const int> prepare(const Row& row, int r) override {
    return std::span(row.tokens).subspan(cache_.length(r));
  }

  void move_row(int from, int to) override { cache_.swap_rows(from, to); }

 private:
  PagedKvCache& cache_;
};

}  // namespace staircase
