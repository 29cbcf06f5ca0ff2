// A paged engine whose rows feed drafts. A lesson need not write it.
#pragma once

#include "paged_engine.h"

namespace staircase {

/// Others share only what is certain: a block with a rejected draft would be of no use to them, and the row
/// itself could not write there again.
class DraftedEngine : public PagedEngine {
 public:
  DraftedEngine(Model& model, PagedKvCache& cache, bool prefix_caching = true)
      : PagedEngine(model, cache, prefix_caching), cache_(cache) {}

  Logits forward(std::span<const std::span<const int>> sequences) override {
    const Logits logits = ModelEngine::forward(sequences);
    for (int r = 0; r < std::ssize(sequences); ++r) cache_.remember(r, certain(sequences[r], r));
    return logits;
  }

  void keep(int r, std::span<const int> drafts, int kept) override {
    PagedEngine::keep(r, drafts, kept);
    cache_.remember(r, drafts.first(kept));
  }

 private:
  PagedKvCache& cache_;
};

}  // namespace staircase
