// The cache of a conversation. A lesson need not write it.
#pragma once

#include "ring_kv_cache.h"

namespace staircase {

/// Room for the whole context, but in a layer with a window only for what later tokens see: step 110, which
/// is on another branch, teaches these rings. Here they are longer, for passes as long as those of other
/// models. truncate() may leave fewer positions than it gets: a ring that cannot go back so far is empty, and
/// the model computes its positions again.
class ConversationCache : public RingKvCache {
 public:
  explicit ConversationCache(Model& model) : RingKvCache(model, 1, Model::kPart) {}
};

}  // namespace staircase
