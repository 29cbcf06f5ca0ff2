// A paged engine whose rows feed drafts. It is given: no lesson writes it.
#pragma once

#include "paged_engine.h"

namespace staircase {

/// Other rows share only verified tokens. A block with a rejected draft would be useless to them, and its own
/// row could not overwrite it.
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
