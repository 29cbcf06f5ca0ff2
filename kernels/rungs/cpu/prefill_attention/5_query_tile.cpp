// Six tokens at a time: a key that is in a register serves six queries, and a value six weights. With the
// tile of the matrix product arithmetic is the limit, no longer the loads. Six rows of scores are kept.
#include "kernels/rungs/cpu/prefill_attention/exponentials.h"
#include "kernels/rungs/cpu/prefill_attention/packed_head.h"
#include "kernels/rungs/cpu/prefill_attention/tile.h"

namespace staircase::rungs::prefill_attention {
namespace {

/// Up to six tokens from `first` on. scores [6, whole panels of positions]
void attend(const Prompt& p, const PackedHead& packed, std::int64_t first, std::int64_t head, float* scores,
            float* out) {
  const std::int64_t size = p.shape.head_size, stride = panels_of(p.shape.positions) * kPanel;
  const std::int64_t count = std::min(kRows, p.tokens - first), seen = p.seen(first + count - 1);
  const float *queries[kRows], *weights[kRows];
  for (std::int64_t r = 0; r < kRows; ++r) {  // with fewer tokens, the last one is computed several times
    queries[r] = p.query(first + std::min(r, count - 1), head);
    weights[r] = scores + r * stride;
  }
  for (std::int64_t key = 0; key < seen; key += kPanel)
    multiply_tile<false>(queries, packed.keys(key), size, scores + key, stride);
  float sums[kRows];
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t own = p.seen(first + r);
    sums[r] = exponentials(scores + r * stride, own, scale_of(p.shape));
    std::fill(scores + r * stride + own, scores + r * stride + seen, 0.0f);
  }
  for (std::int64_t f = 0; f < size; f += kPanel) {
    HWY_ALIGN float means[kRows * kPanel];
    multiply_tile<false>(weights, packed.values(f), seen, means, kPanel);
    for (std::int64_t r = 0; r < count; ++r) {
      float* const to = out + p.place(first + r, head) + f;
      for (std::int64_t i = 0; i < std::min(kPanel, size - f); ++i) to[i] = means[r * kPanel + i] / sums[r];
    }
  }
}

void run(const Prompt& p, ThreadTeam&, float* out) {
  Memory<float> scores(kRows * panels_of(p.shape.positions) * kPanel);
  for (std::int64_t kv_head = 0; kv_head < p.shape.n_kv_head; ++kv_head) {
    const PackedHead packed(p, kv_head);
    for (std::int64_t head = kv_head * p.shape.group(); head < (kv_head + 1) * p.shape.group(); ++head) {
      for (std::int64_t first = 0; first < p.tokens; first += kRows)
        attend(p, packed, first, head, scores.data(), out);
    }
  }
}

}  // namespace

constexpr PrefillRung kQueryTile{"5-query-tile", "a loaded key serves six queries", run};

}  // namespace staircase::rungs::prefill_attention
