// Rung 7 with queries, keys, weights and values in bfloat16. Rungs 8 and 9 differ only in the instruction
// that multiplies a tile. Scores, sums and means stay floats.
#pragma once

#include <memory>
#include <vector>

#include "kernels/rungs/cpu/prefill_attention/block.h"
#include "kernels/rungs/cpu/prefill_attention/paired_head.h"

namespace staircase::rungs::prefill_attention {

constexpr std::int64_t kQueries = 96;  // of a block

/// The working memory of a thread.
struct PairedScratch {
  PairedScratch(const PairedHead& packed, std::int64_t rows, std::int64_t width)
      : queries(kQueries * packed.size()),
        weights(rows * kKeys),
        scores(rows * kKeys),
        means(kQueries * width) {}

  Memory<std::uint16_t> queries, weights;
  Memory<float> scores, means;
};

/// The tokens first .. last - 1, kQueries at most. `Tile` multiplies kRows rows by 64 columns.
template <typename Tile>
void attend_to_pairs(const Prompt& p, const PairedHead& packed, std::int64_t first, std::int64_t last,
                     std::int64_t head, float* out) {
  const std::int64_t size = p.shape.head_size, width = panels_of(size) * kPanel, depth = packed.size();
  PairedScratch scratch(packed, Tile::kRows, width);
  SoFar so_far[kQueries];
  for (std::int64_t token = first; token < last; ++token)
    std::transform(p.query(token, head), p.query(token, head) + size,
                   scratch.queries.data() + (token - first) * depth, bfloat16_from_float32);
  for (std::int64_t key = 0; key < p.seen(last - 1); key += kKeys) {
    for (std::int64_t token = first; token < last; token += Tile::kRows) {
      const std::int64_t end = std::min(token + Tile::kRows, last), seen = p.seen(end - 1) - key;
      if (seen <= 0) continue;
      const std::int64_t count = std::min(kKeys, (seen + Tile::kStep - 1) / Tile::kStep * Tile::kStep);
      float* const scores = scratch.scores.data();
      for (std::int64_t i = 0; i < count; i += kPanel)
        Tile::template multiply<false>(scratch.queries.data() + (token - first) * depth, depth,
                                       packed.keys(key + i), depth, scores + i, kKeys);
      float* const means = scratch.means.data() + (token - first) * width;
      for (std::int64_t r = 0; r < end - token; ++r) {
        float* const row = scores + r * kKeys;
        weigh(row, p.seen(token + r) - key, count, scale_of(p.shape), so_far[token - first + r],
              means + r * width, width);
        std::transform(row, row + count, scratch.weights.data() + r * kKeys, bfloat16_from_float32);
      }
      for (std::int64_t f = 0; f < size; f += kPanel)
        Tile::template multiply<true>(scratch.weights.data(), kKeys, packed.values(f, key), count, means + f,
                                      width);
    }
  }
  for (std::int64_t token = first; token < last; ++token)
    for (std::int64_t i = 0; i < size; ++i)
      out[p.place(token, head) + i] =
          scratch.means.data()[(token - first) * width + i] / so_far[token - first].sum;
}

template <typename Tile>
void run_in_pairs(const Prompt& p, ThreadTeam& team, float* out) {
  std::vector<std::unique_ptr<PairedHead>> packed(static_cast<std::size_t>(p.shape.n_kv_head));
  parallel_each(team, p.shape.n_kv_head, [&](int, std::int64_t kv_head) {
    packed[static_cast<std::size_t>(kv_head)] = std::make_unique<PairedHead>(p, kv_head, Tile::kStep);
  });
  const std::int64_t blocks = (p.tokens + kQueries - 1) / kQueries;
  parallel_each(team, p.shape.n_head * blocks, [&](int, std::int64_t i) {
    const std::int64_t head = i / blocks, first = (blocks - 1 - i % blocks) * kQueries;
    [[maybe_unused]] const Tile tile;  // its constructor and destructor prepare and release registers
    attend_to_pairs<Tile>(p, *packed[static_cast<std::size_t>(head / p.shape.group())], first,
                          std::min(first + kQueries, p.tokens), head, out);
  });
}

}  // namespace staircase::rungs::prefill_attention
