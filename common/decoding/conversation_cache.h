// The cache of a conversation. It is given: no lesson writes it.
#pragma once

#include <algorithm>

#include "ring_kv_cache.h"

namespace staircase {

/// Holds the whole context, but in a layer with a window only what later tokens see, in a ring as in step
/// 110. These rings are longer than there, so passes may be as long as those of other models. truncate() may
/// keep fewer positions than requested: a ring that cannot go back that far is cleared, and the model
/// recomputes it.
class ConversationCache : public RingKvCache {
 public:
  explicit ConversationCache(Model& model) : RingKvCache(model, 1, Model::kPart) {}

  /// The maximum length since the cache was last empty: a ring lacks the oldest of these positions.
  int held() const { return held_; }

  void append(int row, int count) override {
    RingKvCache::append(row, count);
    held_ = std::max(held_, length(row));
  }
  void truncate(int row, int length) override {
    RingKvCache::truncate(row, length);
    if (this->length(row) == 0) held_ = 0;
  }

 private:
  int held_ = 0;
};

}  // namespace staircase
