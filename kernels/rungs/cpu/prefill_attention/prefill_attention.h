// The ladder of attention for many queries, those of a prompt: each token sees its own position and all
// before it. One file per rung.
#pragma once

#include "kernels/rungs/cpu/attention/cache.h"

namespace staircase::rungs {

/// The last `tokens` of a text: the whole prompt if there are as many positions, otherwise its next part.
struct Prompt {
  AttentionShape shape;
  std::int64_t tokens;
  const float* queries;  ///< [tokens, n_head, head_size]
  const float* keys;     ///< [n_kv_head, positions, head_size], and so are the values
  const float* values;

  /// Returns the index at which the query of a token and a head begins, and also its result.
  std::int64_t place(std::int64_t token, std::int64_t head) const {
    return (token * shape.n_head + head) * shape.head_size;
  }
  const float* query(std::int64_t token, std::int64_t head) const { return queries + place(token, head); }
  /// Returns the index at which the keys that a query head reads begin, and also the values.
  std::int64_t cache(std::int64_t head) const {
    return head / shape.group() * shape.positions * shape.head_size;
  }
  /// The number of positions that a token sees.
  std::int64_t seen(std::int64_t token) const { return shape.positions - tokens + token + 1; }
};

struct PrefillRung {
  std::string_view name;  ///< "4-packed-panels", like its file
  std::string_view idea;  ///< in one line
  /// Writes out [tokens, n_head, head_size], for each query softmax(q Kᵀ / √head_size) V over the positions
  /// that its token sees (Vaswani et al. 2017, sections 3.2.1 and 3.2.3). Null if `lacks` names a feature.
  void (*run)(const Prompt& prompt, ThreadTeam& team, float* out);
  /// The feature that this processor or this build lacks for the rung; empty if none.
  std::string_view lacks = {};
};

/// A prompt: arithmetic is the limit, since many queries use each key. 4 · head_size operations for each pair
/// of a query and a position that it sees.
std::span<const PrefillRung> prefill_attention_ladder();

namespace prefill_attention {

using attention::scale_of;

extern const PrefillRung kPlain, kCausal, kSimd, kPackedPanels, kQueryTile, kOnlineSoftmax, kThreads,
    kBFloat16, kAmx;

}  // namespace prefill_attention

}  // namespace staircase::rungs
