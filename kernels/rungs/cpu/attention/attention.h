// The ladder of attention for one new token: each query head sees all positions of its keys. There is one
// file per rung.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kernels/cpu/thread_team.h"

namespace staircase::rungs {

/// Query head h reads key head h / (n_head / n_kv_head). head_size is a multiple of 16, and n_head a multiple
/// of n_kv_head.
struct AttentionShape {
  std::int64_t n_head, n_kv_head, head_size, positions;

  std::int64_t group() const { return n_head / n_kv_head; }
};

/// Attention over fixed keys and values, which the constructor converts to the layout that the rung reads.
class Attention {
 public:
  virtual ~Attention() = default;
  /// Writes out [n_head, head_size] = softmax(q Kᵀ / √head_size) V for queries [n_head, head_size] (Vaswani
  /// et al. 2017, section 3.2.1).
  virtual void run(const float* queries, float* out) = 0;
  /// The bytes of keys and values in this layout.
  virtual std::int64_t cache_bytes() const = 0;
};

struct AttentionRung {
  std::string_view name;  ///< the name of its file, such as "4-exponentials"
  std::string_view idea;  ///< the idea in one line
  /// Reads keys and values [n_kv_head, positions, head_size] only during this call. `team` must outlive the
  /// result.
  std::unique_ptr<Attention> (*prepare)(const AttentionShape& shape, const float* keys, const float* values,
                                        ThreadTeam& team);
};

template <typename A>
constexpr AttentionRung attention_rung(std::string_view name, std::string_view idea) {
  return {name, idea,
          [](const AttentionShape& shape, const float* keys, const float* values, ThreadTeam& team)
              -> std::unique_ptr<Attention> { return std::make_unique<A>(shape, keys, values, team); }};
}

/// The rungs for one token after a long sequence, where memory is the limit. They take 4 · n_head · positions
/// · head_size operations.
std::span<const AttentionRung> attention_ladder();

namespace attention {

extern const AttentionRung kPlain, kLoopOrder, kDotProducts, kExponentials, kOnlineSoftmax, kPackedKeys,
    kGroups, kThreads, kSplitKeys, kBFloat16;

}  // namespace attention

}  // namespace staircase::rungs
