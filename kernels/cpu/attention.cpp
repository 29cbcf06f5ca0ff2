// attention: out = softmax(q Kᵀ / sqrt(head_size)) V for each head, each query seeing its own position and
// those before.
//
// queries and out [n_tokens, n_embd], keys and values [n_rows, n_head, capacity, head_size]. For a sequence
// of n positions: 4 · n_embd operations for each pair of a query and a key that it sees.
//
// Many queries (prefill): both products have the shape of `linear`, [queries, depth] times [depth, columns],
// so the keys (as [head_size, positions]) and the values (as [positions, head_size]) of each head are brought
// into panels once and the tile of tile-inl.h does the rest, 6 queries at a time; it is limited by
// arithmetic. Six rows of scores per thread are all that is ever stored.
//
// A few queries (decoding): packing would cost more than it saves. Each score is a dot product with a key
// where it lies, and the limit is the bandwidth at which keys and values are read: 8 · n_embd bytes a
// position, or half of it where they are kept in 16 bits.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cpp"
#include <hwy/foreach_target.h>
// The target comes first.
#include <hwy/contrib/math/math-inl.h>

#include <cmath>

#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace staircase {
namespace HWY_NAMESPACE {

/// Softmax of scores[0 .. count - 1] in place, without the division: returns 1 / sum (Milakov and Gimelshein
/// 2018, section 2: the largest score is subtracted first, so that exp cannot overflow). The scores up to the
/// next whole panel become 0.
HWY_INLINE float exponentials(float* scores, std::int64_t count) {
  const Floats d;
  const std::int64_t padded = divide_up(count, kPanel) * kPanel;
  std::fill(scores + count, scores + padded, -HUGE_VALF);
  auto largest = hn::Load(d, scores);
  for (std::int64_t i = kLanes; i < padded; i += kLanes) largest = hn::Max(largest, hn::Load(d, scores + i));
  largest = hn::MaxOfLanes(d, largest);
  auto sum = hn::Zero(d);
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    const auto value = hn::Exp(d, hn::Sub(hn::Load(d, scores + i), largest));
    hn::Store(value, d, scores + i);
    sum = hn::Add(sum, value);
  }
  return 1.0f / hn::GetLane(hn::SumOfLanes(d, sum));
}

/// One query of a head on its first `count` keys and values, [count, head_size]. `scores` has room for them.
template <typename T>
HWY_INLINE void attend(const float* query, const T* keys, const T* values, std::int64_t count,
                       std::int64_t head_size, float* scores, float* out) {
  const Floats d;
  const std::int64_t whole = head_size / kLanes * kLanes;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_size));
  // Keys and values are asked for ahead of time, the first values behind the last keys: each head is a short
  // stream, and a good part of it has passed before the processor itself notices that it is one.
  constexpr std::int64_t kAhead = 4096 / sizeof(T), kLine = kLineBytes / sizeof(T);
  for (std::int64_t p = 0; p < count; ++p) {
    const T* const key = keys + p * head_size;
    const std::int64_t ahead = p * head_size + kAhead, beyond = ahead - count * head_size;
    const T* const next = beyond < 0 ? keys + ahead : values + beyond;
    for (std::int64_t i = 0; i < head_size; i += kLine) hwy::Prefetch(next + i);
    auto sum = hn::Zero(d);
    for (std::int64_t i = 0; i < whole; i += kLanes) {
      sum = hn::MulAdd(hn::LoadU(d, query + i), load_wide(key + i), sum);
    }
    float score = hn::GetLane(hn::SumOfLanes(d, sum));
    for (std::int64_t i = whole; i < head_size; ++i) score += query[i] * widen(key[i]);
    scores[p] = score * scale;
  }
  const float inverse_sum = exponentials(scores, count);

  constexpr std::int64_t kRegisters = 64 / kLanes;  // of the sums, kept while all positions pass
  for (std::int64_t first = 0; first < whole; first += kRegisters * kLanes) {
    const std::int64_t registers = std::min(kRegisters, (whole - first) / kLanes);
    hn::Vec<Floats> sum[kRegisters];
    for (auto& s : sum) s = hn::Zero(d);
    for (std::int64_t p = 0; p < count; ++p) {
      const auto weight = hn::Set(d, scores[p]);
      const T* const value = values + p * head_size + first;
      for (std::int64_t i = 0; i < kRegisters * kLanes; i += kLine) hwy::Prefetch(value + kAhead + i);
      if (registers == kRegisters) {
#pragma GCC unroll 16
        for (std::int64_t r = 0; r < kRegisters; ++r) {
          sum[r] = hn::MulAdd(weight, load_wide(value + r * kLanes), sum[r]);
        }
      } else {
        for (std::int64_t r = 0; r < registers; ++r) {
          sum[r] = hn::MulAdd(weight, load_wide(value + r * kLanes), sum[r]);
        }
      }
    }
    for (std::int64_t r = 0; r < registers; ++r) {
      hn::StoreU(hn::Mul(sum[r], hn::Set(d, inverse_sum)), d, out + first + r * kLanes);
    }
  }
  for (std::int64_t i = whole; i < head_size; ++i) {
    float sum = 0.0f;
    for (std::int64_t p = 0; p < count; ++p) sum += scores[p] * widen(values[p * head_size + i]);
    out[i] = sum * inverse_sum;
  }
}

/// Keys of one head into panels [positions / 16, head_size, 16], values into [head_size / 16, positions, 16].
template <typename T>
HWY_INLINE void pack(const T* keys, const T* values, std::int64_t count, std::int64_t head_size,
                     float* packed_keys, float* packed_values) {
  for (std::int64_t p = 0; p < divide_up(count, kPanel) * kPanel; ++p) {
    float* const column = packed_keys + p / kPanel * head_size * kPanel + p % kPanel;
    for (std::int64_t i = 0; i < head_size; ++i)
      column[i * kPanel] = p < count ? widen(keys[p * head_size + i]) : 0.0f;
  }
  for (std::int64_t panel = 0; panel < divide_up(head_size, kPanel); ++panel) {
    const std::int64_t first = panel * kPanel, width = std::min(kPanel, head_size - first);
    for (std::int64_t p = 0; p < count; ++p) {
      float* const row = packed_values + (panel * count + p) * kPanel;
      for (std::int64_t i = 0; i < width; ++i) row[i] = widen(values[p * head_size + first + i]);
      std::fill(row + width, row + kPanel, 0.0f);
    }
  }
}

/// Up to 6 neighbouring queries of one head, the first at `position`, on packed keys and values of `total`
/// positions.
HWY_ATTR void attend_tile(const float* queries, std::int64_t rows, std::int64_t position, std::int64_t stride,
                          const float* packed_keys, const float* packed_values, std::int64_t total,
                          std::int64_t head_size, float* scores, float* out) {
  const Floats d;
  const std::int64_t seen = position + rows;  // by the last query
  const std::int64_t score_stride = divide_up(total, kPanel) * kPanel;
  const auto scale = hn::Set(d, 1.0f / std::sqrt(static_cast<float>(head_size)));
  multiply_panels(
      queries, rows, stride, packed_keys, head_size * kPanel, head_size, 0, divide_up(seen, kPanel),
      [=](std::int64_t row, std::int64_t column, std::int64_t count, const float* products) HWY_ATTR {
        float* const to = scores + row * score_stride + column;
        for (std::int64_t i = 0; i < count; i += kLanes) {
          hn::Store(hn::Mul(hn::Load(d, products + i), scale), d, to + i);
        }
      });
  float inverse_sums[kTileRows];
  for (std::int64_t row = 0; row < rows; ++row) {
    float* const row_scores = scores + row * score_stride;
    const std::int64_t own = position + row + 1;
    inverse_sums[row] = exponentials(row_scores, own);
    // Later queries of the tile see a few keys more; for this one their weight is 0.
    const std::int64_t written = divide_up(own, kPanel) * kPanel;
    if (written < seen) std::fill(row_scores + written, row_scores + seen, 0.0f);
  }
  multiply_panels(
      scores, rows, score_stride, packed_values, total * kPanel, seen, 0, divide_up(head_size, kPanel),
      [=](std::int64_t row, std::int64_t column, std::int64_t count, const float* products) HWY_ATTR {
        count = std::min(count, head_size - column);
        float* const to = out + row * stride + column;
        for (std::int64_t i = 0; i < count; ++i) to[i] = products[i] * inverse_sums[row];
      });
}

HWY_ATTR void attend_one(const float* query, const HeadOfCache& head, std::int64_t count, float* scores,
                         float* out) {
  with_elements(head.keys_values.keys.dtype(), head.keys_values.keys.data<void>(), [&](auto* keys) HWY_ATTR {
    auto* const values = head.keys_values.values.data<std::remove_pointer_t<decltype(keys)>>();
    attend(query, keys + head.first, values + head.first, count, head.size, scores, out);
  });
}

HWY_ATTR void pack_head(const HeadOfCache& head, std::int64_t count, float* packed_keys,
                        float* packed_values) {
  with_elements(head.keys_values.keys.dtype(), head.keys_values.keys.data<void>(), [&](auto* keys) HWY_ATTR {
    auto* const values = head.keys_values.values.data<std::remove_pointer_t<decltype(keys)>>();
    pack(keys + head.first, values + head.first, count, head.size, packed_keys, packed_values);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace staircase
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace staircase {
namespace {

HWY_EXPORT(attend_one);
HWY_EXPORT(attend_tile);
HWY_EXPORT(pack_head);

/// From this number of new tokens on, packing the keys and values of a sequence pays.
constexpr std::int64_t kManyQueries = 16;
constexpr std::int64_t kTileQueries = 6;

/// One head of one sequence.
struct Head {
  std::int64_t queries;  ///< how many
  std::int64_t start;    ///< the position of the first
  std::int64_t total;    ///< positions, the new ones included
  const float* query;
  HeadOfCache cache;
  float* out;
  float* packed_keys = nullptr;
  float* packed_values = nullptr;
};

}  // namespace

void CpuDevice::attention(const Batch& batch, const Tensor& queries, const KeysValues& keys_values,
                          int n_head, Tensor& out) {
  const std::int64_t width = queries.dim(1), head_size = width / n_head, capacity = keys_values.keys.dim(2);
  const std::int64_t padded_head = divide_up(head_size, kPanel) * kPanel;
  const auto* const offsets = batch.offsets.data<std::int32_t>();
  const auto* const starts = batch.starts.data<std::int32_t>();

  std::vector<Head> heads;
  std::int64_t longest = 0, packed_floats = 0;
  for (std::int64_t s = 0; s < batch.n_sequences(); ++s) {
    const std::int64_t count = offsets[s + 1] - offsets[s], total = starts[s] + count;
    longest = std::max(longest, total);
    if (count >= kManyQueries)
      packed_floats += n_head * divide_up(total, kPanel) * kPanel * (head_size + padded_head);
    for (std::int64_t h = 0; h < n_head; ++h) {
      const std::int64_t query = offsets[s] * width + h * head_size,
                         key = (s * n_head + h) * capacity * head_size;
      heads.push_back({count,
                       starts[s],
                       total,
                       queries.data<float>() + query,
                       {keys_values, key, head_size},
                       out.data<float>() + query});
    }
  }
  const std::int64_t score_floats = kTileQueries * divide_up(longest, kPanel) * kPanel;
  float* const scores = scratch(static_cast<std::size_t>(team_.size() * score_floats + packed_floats));

  struct Tile {
    const Head* head;
    std::int64_t first;  ///< of its queries
  };
  std::vector<Tile> tiles;
  float* packed = scores + team_.size() * score_floats;
  for (Head& head : heads) {
    if (head.queries < kManyQueries) continue;
    const std::int64_t padded_total = divide_up(head.total, kPanel) * kPanel;
    head.packed_keys = packed;
    head.packed_values = packed += padded_total * head_size;
    packed += padded_total * padded_head;
    for (std::int64_t first = 0; first < head.queries; first += kTileQueries) tiles.push_back({&head, first});
  }

  parallel_each(team_, static_cast<std::int64_t>(heads.size()), [&](int thread, std::int64_t i) {
    const Head& head = heads[static_cast<std::size_t>(i)];
    if (head.packed_keys != nullptr) {
      HWY_DYNAMIC_DISPATCH(pack_head)
      (head.cache, head.total, head.packed_keys, head.packed_values);
      return;
    }
    for (std::int64_t q = 0; q < head.queries; ++q) {
      HWY_DYNAMIC_DISPATCH(attend_one)
      (head.query + q * width, head.cache, head.start + q + 1, scores + thread * score_floats,
       head.out + q * width);
    }
  });
  parallel_each(team_, static_cast<std::int64_t>(tiles.size()), [&](int thread, std::int64_t i) {
    const auto& [head, first] = tiles[static_cast<std::size_t>(i)];
    HWY_DYNAMIC_DISPATCH(attend_tile)
    (head->query + first * width, std::min(kTileQueries, head->queries - first), head->start + first, width,
     head->packed_keys, head->packed_values, head->total, head_size, scores + thread * score_floats,
     head->out + first * width);
  });
}

}  // namespace staircase
#endif  // HWY_ONCE
