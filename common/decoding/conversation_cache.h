// The cache of a conversation. A lesson need not write it.
#pragma once

#include <algorithm>

#include "ring_kv_cache.h"

namespace staircase {

/// Room for the whole context, but in a layer with a window only for what later tokens see: step 110, which
/// is on another branch, teaches these rings. Here they are longer, for passes as long as those of other
/// models. truncate() may leave fewer positions than it gets: a ring that cannot go back so far is empty, and
/// the model computes its positions again.
class ConversationCache : public RingKvCache {
 public:
  explicit ConversationCache(Model& model) : RingKvCache(model, 1, Model::kPart) {}

  /// The most positions that it has held since it was empty: a ring lacks the oldest of these.
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
