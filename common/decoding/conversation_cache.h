// The cache of a conversation. A lesson need not write it.
#pragma once

#include "ring_kv_cache.h"

namespace staircase {

/// Room for the whole context, but in a layer with a window only for what later tokens see: step 110, which
/// is on another branch, teaches these rings. truncate() may leave less than it is told to: a ring that
/// cannot go back so far is empty, and the model computes its positions again.
using ConversationCache = RingKvCache;

}  // namespace staircase
