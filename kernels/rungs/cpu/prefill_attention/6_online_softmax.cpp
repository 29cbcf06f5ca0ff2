// A block of keys for many queries: 256 keys and their values, 128 KB, stay in the second cache while 96
// queries use them. That needs a softmax of scores that come in blocks, and no row of scores grows with the
// text. Tiles whose tokens see nothing of the block are left out.
#include "kernels/rungs/cpu/prefill_attention/block.h"
#include "kernels/rungs/cpu/prefill_attention/packed_head.h"
#include "kernels/rungs/cpu/prefill_attention/tile.h"

namespace staircase::rungs::prefill_attention {
namespace {

constexpr std::int64_t kQueries = 16 * kRows;  // of a block

/// The tokens first .. last - 1, kQueries at most. means [kQueries, whole panels of features]
void attend(const Prompt& p, const PackedHead& packed, std::int64_t first, std::int64_t last,
            std::int64_t head, float* means, float* out) {
  const std::int64_t size = p.shape.head_size, width = panels_of(size) * kPanel;
  SoFar so_far[kQueries];
  std::fill_n(means, kQueries * width, 0.0f);
  for (std::int64_t key = 0; key < p.seen(last - 1); key += kKeys) {
    for (std::int64_t token = first; token < last; token += kRows) {
      const std::int64_t end = std::min(token + kRows, last);
      if (p.seen(end - 1) <= key) continue;
      HWY_ALIGN float scores[kRows * kKeys];
      const float *queries[kRows], *weights[kRows];
      for (std::int64_t r = 0; r < kRows; ++r) {
        queries[r] = p.query(std::min(token + r, end - 1), head);
        weights[r] = scores + r * kKeys;
      }
      const std::int64_t count = std::min(kKeys, p.seen(end - 1) - key);
      for (std::int64_t i = 0; i < count; i += kPanel)
        multiply_tile<false>(queries, packed.keys(key + i), size, scores + i, kKeys);
      float* const own = means + (token - first) * width;
      for (std::int64_t r = 0; r < end - token; ++r)
        weigh(scores + r * kKeys, p.seen(token + r) - key, count, scale_of(p.shape),
              so_far[token - first + r], own + r * width, width);
      for (std::int64_t f = 0; f < size; f += kPanel)
        multiply_tile<true>(weights, packed.values(f, key), count, own + f, width);
    }
  }
  for (std::int64_t token = first; token < last; ++token, means += width) {
    for (std::int64_t i = 0; i < size; ++i)
      out[p.place(token, head) + i] = means[i] / so_far[token - first].sum;
  }
}

void run(const Prompt& p, ThreadTeam&, float* out) {
  Memory<float> means(kQueries * panels_of(p.shape.head_size) * kPanel);
  for (std::int64_t kv_head = 0; kv_head < p.shape.n_kv_head; ++kv_head) {
    const PackedHead packed(p, kv_head);
    for (std::int64_t head = kv_head * p.shape.group(); head < (kv_head + 1) * p.shape.group(); ++head) {
      for (std::int64_t first = 0; first < p.tokens; first += kQueries)
        attend(p, packed, first, std::min(first + kQueries, p.tokens), head, means.data(), out);
    }
  }
}

}  // namespace

constexpr PrefillRung kOnlineSoftmax{"6-online-softmax",
                                     "a block of keys serves 96 queries, then the next block", run};

}  // namespace staircase::rungs::prefill_attention
