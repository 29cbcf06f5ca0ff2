// Heads and blocks of queries among the threads. A late block sees more keys than an early one, so a free
// thread claims the next, and each head begins with its longest.
#include <memory>
#include <vector>

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

void run(const Prompt& p, ThreadTeam& team, float* out) {
  std::vector<std::unique_ptr<PackedHead>> packed(static_cast<std::size_t>(p.shape.n_kv_head));
  parallel_each(team, p.shape.n_kv_head, [&](int, std::int64_t kv_head) {
    packed[static_cast<std::size_t>(kv_head)] = std::make_unique<PackedHead>(p, kv_head);
  });
  const std::int64_t floats = kQueries * panels_of(p.shape.head_size) * kPanel;
  Memory<float> means(team.size() * floats);
  const std::int64_t blocks = (p.tokens + kQueries - 1) / kQueries;
  parallel_each(team, p.shape.n_head * blocks, [&](int thread, std::int64_t i) {
    const std::int64_t head = i / blocks, first = (blocks - 1 - i % blocks) * kQueries;
    attend(p, *packed[static_cast<std::size_t>(head / p.shape.group())], first,
           std::min(first + kQueries, p.tokens), head, means.data() + thread * floats, out);
  });
}

}  // namespace

constexpr PrefillRung kThreads{"7-threads", "every core takes the next block of queries", run};

}  // namespace staircase::rungs::prefill_attention
