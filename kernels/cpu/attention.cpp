// attention: out = softmax(q Kᵀ / sqrt(head_size)) V for each head; each query sees its own position and
// earlier ones.
//
// queries and out [n_tokens, n_head · head_size], keys and values [n_rows, n_kv_head, capacity, head_size],
// or in blocks. Each pair of a query and a key that it sees takes 4 · head_size operations. All loops go over
// runs of adjacent positions: the blocks of a row, or the whole row. Queries that share a key head, from
// several heads and tokens, form the rows of tiles.
//
// Many queries (prefill): both products have the shape of `linear`, [queries, depth] times [depth, columns].
// So the keys ([head_size, positions]) and the values ([positions, head_size]) of each head are packed into
// panels once. Then tiles of 6 queries are multiplied by the panels; arithmetic is the limit. Each thread
// stores the scores of one tile only.
//
// A few queries (decoding, or drafts to verify): packing would cost more than it saves. Each score is a dot
// product with an unpacked key. The limit is memory bandwidth: up to 8 queries together read 8 · head_size
// bytes of keys and values per position and head. 16-bit caches halve that, and int8 halves it again. A head
// is one thread's work, so three heads would keep two threads busy for as long as four. After a long text the
// threads share each head instead: first the positions of its scores, then the features of its values. This
// changes no order of additions.
//
// Keys and values in 16 bits or int8 are widened when they are loaded into a register, which is exact. A
// key's scale multiplies its score, and a value's scale multiplies its weight: one multiplication instead of
// head_size. In int4 each vector becomes least + level · step. Processors that multiply bfloat16 do it as in
// bfloat16_attention.h. An int4 cache holds rotated keys and values (KeysValues in device.h). Each query is
// also rotated, which does not change the scores, and each result is rotated back.
//
// Both ways add in the same order, so a token's result is the same, bit for bit, whether its prompt arrives
// as a whole, in parts or token by token.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h must precede this: it sets the target.
#include <hwy/contrib/math/math-inl.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/cpu/bfloat16_attention.h"
#include "kernels/cpu/hadamard-inl.h"
#include "kernels/cpu/runs.h"
#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace staircase {
namespace HWY_NAMESPACE {

/// softmax(scale · scores[first .. count - 1]) in place, without the division: returns 1 / sum (Milakov and
/// Gimelshein 2018, section 2: the largest score is subtracted first, so exp cannot overflow). All other
/// scores, up to `total` and to the end of the last vector, become 0.
HWY_INLINE float exponentials(float* scores, float scale, std::int64_t first, std::int64_t count,
                              std::int64_t total) {
  const Floats d;
  const std::int64_t padded = divide_up(count, kLanes) * kLanes;
  std::fill(scores, scores + first, -HUGE_VALF);
  std::fill(scores + count, scores + padded, -HUGE_VALF);
  auto largest = hn::Load(d, scores);
  for (std::int64_t i = kLanes; i < padded; i += kLanes) largest = hn::Max(largest, hn::Load(d, scores + i));
  largest = hn::MaxOfLanes(d, largest);
  auto sum = hn::Zero(d);
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    const auto below = hn::Sub(hn::Load(d, scores + i), largest);
    const auto value = hn::Exp(d, hn::Mul(below, hn::Set(d, scale)));
    hn::Store(value, d, scores + i);
    sum = hn::Add(sum, value);
  }
  if (padded < total) std::fill(scores + padded, scores + total, 0.0f);
  return 1.0f / hn::GetLane(hn::SumOfLanes(d, sum));
}

/// Lane i of the result is the sum of the lanes of vectors[i]: neighbouring lanes are added, then
/// neighbouring sums, and so on.
HWY_INLINE hn::Vec<Floats> sums_of_lanes(hn::Vec<Floats>* vectors) {
#if HWY_TARGET != HWY_SCALAR  // the scalar target has one lane
  const Floats d;
#pragma GCC unroll 4
  for (int count = kLanes / 2; count > 0; count /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      const auto a = vectors[2 * i], b = vectors[2 * i + 1];
      vectors[i] = hn::Add(hn::ConcatEven(d, b, a), hn::ConcatOdd(d, b, a));
    }
  }
#endif
  return vectors[0];
}

/// Adds to one query's scores the part of the features that do not fill a vector. This function and the next
/// are not inlined, so the compiler rounds in the same way for every number of queries.
template <typename T>
HWY_NOINLINE void add_rest_of_scores(const float* query, const Runs<T>& runs, std::int64_t total,
                                     std::int64_t whole, float* scores) {
  if constexpr (kHasRest<T>) {
    for (std::int64_t run = 0, begin = 0; begin < total; ++run, begin += runs.length) {
      const T* const keys = runs.keys(run);
      for (std::int64_t p = 0; p < std::min(runs.length, total - begin); ++p) {
        for (std::int64_t i = whole; i < runs.head_size; ++i) {
          scores[begin + p] += query[i] * widen(keys[p * runs.step + i]);
        }
      }
    }
  }
}

/// Computes one query's result for the features that do not fill a vector, from `total` positions.
template <typename T>
HWY_NOINLINE void rest_of_values(const float* weights, const Runs<T>& runs, std::int64_t total,
                                 std::int64_t whole, float* out) {
  if constexpr (kHasRest<T>) {
    for (std::int64_t i = whole; i < runs.head_size; ++i) {
      float sum = 0.0f;
      for (std::int64_t run = 0, begin = 0; begin < total; ++run, begin += runs.length) {
        const T* const values = runs.values(run);
        for (std::int64_t p = 0; p < std::min(runs.length, total - begin); ++p) {
          sum += weights[begin + p] * widen(values[p * runs.step + i]);
        }
      }
      out[i] = sum;
    }
  }
}

/// Whether keys and values of this type have scales.
template <typename T>
constexpr bool kHasScales = std::is_same_v<T, std::int8_t>;

/// Multiplies each row, which holds scores of keys or weights of values, by the scales of one vector of
/// positions. The first position is at `position`, and `count` positions are left in the run.
template <typename T>
HWY_INLINE void multiply_by_scales(const Runs<T>& runs, const T* position, std::int64_t count,
                                   std::int64_t n_rows, std::int64_t row_stride, float* rows) {
  if constexpr (kHasScales<T>) {
    HWY_ALIGN float scales[kLanes];
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      std::memcpy(scales + lane, position + std::min(lane, count - 1) * runs.step + runs.head_size,
                  sizeof(float));
    }
    const auto factors = hn::Load(Floats(), scales);
    for (std::int64_t r = 0; r < n_rows; ++r) {
      float* const row = rows + r * row_stride;
      hn::StoreU(hn::Mul(hn::LoadU(Floats(), row), factors), Floats(), row);
    }
  }
}

/// Multiplies each row by the scales of all `total` positions. `part` selects the scales: Runs::keys or
/// Runs::values.
template <typename T, typename Part>
HWY_INLINE void multiply_by_all_scales(const Runs<T>& runs, Part part, std::int64_t total,
                                       std::int64_t n_rows, std::int64_t row_stride, float* rows) {
  if constexpr (kHasScales<T>) {
    for (std::int64_t run = 0, begin = 0; begin < total; ++run, begin += runs.length) {
      const T* const positions = (runs.*part)(run);
      const std::int64_t count = std::min(runs.length, total - begin);
      for (std::int64_t p = 0; p < count; p += kLanes) {
        multiply_by_scales(runs, positions + p * runs.step, count - p, n_rows, row_stride, rows + begin + p);
      }
    }
  }
}

/// How far ahead keys and values are prefetched: kBytesFarAhead, as a number of runs and elements. Each head
/// is a short stream, and much of it has passed before the processor itself detects a stream. The data goes
/// into the second-level cache, which can wait for more lines at a time than the first.
template <typename T>
struct Ahead {
  HWY_INLINE Ahead(const Runs<T>& of, std::int64_t total)
      : run_elements(std::min(of.length, total) * of.step),
        runs(kBytesFarAhead / std::int64_t{sizeof(T)} / run_elements),
        elements(kBytesFarAhead / std::int64_t{sizeof(T)} % run_elements) {}

  /// The address to prefetch at element i of a run. The run `runs` later starts at `near`, and the next one
  /// at `far`.
  HWY_INLINE const T* of(std::int64_t i, const T* near, const T* far) const {
    const std::int64_t beyond = i + elements - run_elements;
    return beyond < 0 ? near + i + elements : far + beyond;
  }

  std::int64_t run_elements, runs, elements;
};
template <typename T>
constexpr std::int64_t kElementsOfLine = kLineBytes / sizeof(T);

/// The size of a head in most small models.
constexpr std::int64_t kUsualHead = 64;

/// Computes multiply_keys for the keys `begin` .. `count` - 1 of one run. `near` and `far` are as in Ahead.
template <int kQueries, typename T>
HWY_INLINE void multiply_run(const float* queries, std::int64_t stride, const Runs<T>& runs, const T* keys,
                             std::int64_t begin, std::int64_t count, const Ahead<T>& ahead, const T* near,
                             const T* far, std::int64_t score_stride, float* scores) {
  const Floats d;
  const std::int64_t head_size = runs.head_size;
  for (std::int64_t first = begin; first < count; first += kLanes) {
    HWY_ALIGN float partial[kQueries][kLanes * kLanes];
    const auto multiply = [&](std::int64_t vectors) HWY_ATTR {
      for (int lane = 0; lane < kLanes; ++lane) {
        // Past the last key, the last key is used again, and its extra scores are overwritten later.
        const std::int64_t place = std::min(first + lane, count - 1) * runs.step;
        const T* const key = keys + place;
        const T* const next = ahead.of(place, near, far);
        for (std::int64_t i = 0; i < vectors * kLanes; i += kElementsOfLine<T>)
          __builtin_prefetch(next + i, 0, 2);
        hn::Vec<Floats> sum[kQueries];
        for (auto& s : sum) s = hn::Zero(d);
#pragma GCC unroll 4
        for (std::int64_t v = 0; v < vectors; ++v) {
          const auto part = load_features(key, head_size, v * kLanes);
#pragma GCC unroll 8
          for (int q = 0; q < kQueries; ++q) {
            sum[q] = hn::MulAdd(hn::LoadU(d, queries + q * stride + v * kLanes), part, sum[q]);
          }
        }
#pragma GCC unroll 8
        for (int q = 0; q < kQueries; ++q) hn::Store(sum[q], d, partial[q] + lane * kLanes);
      }
    };
    // If the size is a constant, the compiler keeps the queries in registers.
    kAvx512&& head_size == kUsualHead ? multiply(kUsualHead / kLanes) : multiply(head_size / kLanes);
    for (int q = 0; q < kQueries; ++q) {
      hn::Vec<Floats> sums[kLanes];
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane) sums[lane] = hn::Load(d, partial[q] + lane * kLanes);
      hn::Store(sums_of_lanes(sums), d, scores + q * score_stride + first);
    }
    multiply_by_scales(runs, keys + first * runs.step, count - first, kQueries, score_stride, scores + first);
  }
}

/// scores [kQueries, score_stride] = q · k for each query and key of these positions, without the features
/// that do not fill a vector. After the last keys, the first values are prefetched.
template <int kQueries, typename T>
HWY_INLINE void multiply_keys(const float* queries, std::int64_t stride, Runs<T> runs, std::int64_t total,
                              IndexRange positions, std::int64_t score_stride, float* scores) {
  static_assert(16 % kLanes == 0, "a block begins where a vector of scores begins");
  const Ahead<T> ahead(runs, total);
  const std::int64_t count = divide_up(total, runs.length);
  const auto keys_then_values = [&](std::int64_t run) HWY_ATTR {
    return run < count ? runs.keys(run) : runs.values(std::min(run - count, count - 1));
  };
  for (std::int64_t run = positions.first / runs.length, begin = run * runs.length; begin < positions.last;
       ++run, begin += runs.length) {
    multiply_run<kQueries>(
        queries, stride, runs, runs.keys(run), std::max<std::int64_t>(positions.first - begin, 0),
        std::min(runs.length, positions.last - begin), ahead, keys_then_values(run + ahead.runs),
        keys_then_values(run + ahead.runs + 1), score_stride, scores + begin);
  }
}

/// out[q] = the sum of these features of the values, each times q's weight for it, again without the features
/// that do not fill a vector. After the last values, the first keys of the next head are prefetched.
template <int kQueries, typename T>
HWY_INLINE void add_values(const float* weights, std::int64_t weight_stride, Runs<T> runs, std::int64_t total,
                           const Runs<T>& next_head, IndexRange features, std::int64_t stride, float* out) {
  const Floats d;
  const std::int64_t head_size = runs.head_size;
  // How many registers hold a query's sums. They are kept over all positions.
  constexpr std::int64_t kRegisters =
      kQueries > kTileQueries ? kAccumulators / 12
                              : std::clamp<std::int64_t>(kAccumulators / kQueries, 1, 64 / kLanes);
  const std::int64_t vectors = features.last / kLanes;
  const Ahead<T> ahead(runs, total);
  const std::int64_t count = divide_up(total, runs.length);
  const auto values_then_next = [&](std::int64_t run)
                                    HWY_ATTR { return run < count ? runs.values(run) : next_head.keys(0); };
  for (std::int64_t first = features.first / kLanes; first < vectors; first += kRegisters) {
    const std::int64_t registers = std::min(kRegisters, vectors - first);
    // Weights times scales of a vector of positions.
    HWY_ALIGN float scaled[kHasScales<T> ? kQueries * kLanes : 1];
    hn::Vec<Floats> sum[kQueries][kRegisters];
    for (auto& row : sum) {
      for (auto& s : row) s = hn::Zero(d);
    }
    for (std::int64_t run = 0, begin = 0; begin < total; ++run, begin += runs.length) {
      const T* const values = runs.values(run);
      const T* const near = values_then_next(run + ahead.runs);
      const T* const far = values_then_next(run + ahead.runs + 1);
      for (std::int64_t p = 0; p < std::min(runs.length, total - begin); ++p) {
        const T* const value = values + p * runs.step;
        const T* const next = ahead.of(p * runs.step, near, far);
        const float* own = weights + begin + p;
        std::int64_t own_stride = weight_stride;
        if constexpr (kHasScales<T>) {
          if (p % kLanes == 0) {
            for (int q = 0; q < kQueries; ++q)
              hn::Store(hn::LoadU(d, own + q * weight_stride), d, scaled + q * kLanes);
            multiply_by_scales(runs, value, std::min(runs.length, total - begin) - p, kQueries, kLanes,
                               scaled);
          }
          own = scaled + p % kLanes;
          own_stride = kLanes;
        }
        for (std::int64_t i = 0; i < registers * kLanes; i += kElementsOfLine<T>)
          __builtin_prefetch(next + first * kLanes + i, 0, 2);
        hn::Vec<Floats> weight[kQueries];
#pragma GCC unroll 8
        for (int q = 0; q < kQueries; ++q) weight[q] = hn::Set(d, own[q * own_stride]);
        const auto add = [&](std::int64_t size, std::int64_t begin_vector, std::int64_t vectors_of_value)
                             HWY_ATTR {
#pragma GCC unroll 16
                               for (std::int64_t r = 0; r < vectors_of_value; ++r) {
                                 const auto part = load_features(value, size, (begin_vector + r) * kLanes);
#pragma GCC unroll 8
                                 for (int q = 0; q < kQueries; ++q)
                                   sum[q][r] = hn::MulAdd(weight[q], part, sum[q][r]);
                               }
                             };
        // The usual numbers are passed as constants, so the compiler keeps the sums in registers.
        if (kRegisters * kLanes == kUsualHead && head_size == kUsualHead && registers == kRegisters) {
          add(kUsualHead, 0, kRegisters);
        } else if (registers == kRegisters) {
          add(head_size, first, kRegisters);
        } else {
          2 * registers == kRegisters ? add(head_size, first, kRegisters / 2)
                                      : add(head_size, first, registers);
        }
      }
    }
    for (int q = 0; q < kQueries; ++q) {
      for (std::int64_t r = 0; r < registers; ++r) {
        hn::StoreU(sum[q][r], d, out + q * stride + (first + r) * kLanes);
      }
    }
  }
}

/// Elements from one row of scores to the next.
HWY_INLINE std::int64_t score_stride_of(const QueryTile& tile) {
  return divide_up(tile.seen(), kHalfPanel) * kHalfPanel;
}

/// The scores of a tile of kQueries queries. Each key is read once for all of them.
template <int kQueries, typename T>
HWY_NOINLINE void score_few(const QueryTile& tile, const Runs<T>& runs, IndexRange positions, float* scores) {
  multiply_keys<kQueries>(tile.queries, runs.head_size, runs, tile.seen(), positions, score_stride_of(tile),
                          scores);
}

/// The weights of query `row` in place of its scores. Returns 1 / their sum.
template <typename T>
HWY_NOINLINE float weigh_row(const QueryTile& tile, const Runs<T>& runs, std::int64_t row, float* scores) {
  const std::int64_t head_size = runs.head_size, rest = head_size % kLanes, seen = tile.seen_by(row);
  float* const own = scores + row * score_stride_of(tile);
  if (rest > 0) add_rest_of_scores(tile.queries + row * head_size, runs, seen, head_size - rest, own);
  return exponentials(own, 1.0f / std::sqrt(static_cast<float>(head_size)), tile.first_seen(row), seen,
                      tile.seen());
}

/// These features of the results of kQueries queries: out [kQueries, head_size]. Each value is read once for
/// all queries, and then the keys of the `next` head are prefetched.
template <int kQueries, typename T>
HWY_NOINLINE void add_few(const QueryTile& tile, const Runs<T>& runs, const Runs<T>& next,
                          IndexRange features, const float* inverse_sums, float* scores, float* out) {
  const std::int64_t head_size = runs.head_size, whole = head_size - head_size % kLanes;
  const std::int64_t stride = score_stride_of(tile);
  add_values<kQueries>(scores, stride, runs, tile.seen(), next, features, head_size, out);
  for (int q = 0; q < kQueries; ++q) {
    float* const own = out + q * head_size;
    if (features.last > whole) rest_of_values(scores + q * stride, runs, tile.seen_by(q), whole, own);
    for (std::int64_t i = features.first; i < features.last; ++i) own[i] *= inverse_sums[q];
  }
}

template <typename T, int... kLess>
constexpr auto score_functions(std::integer_sequence<int, kLess...>) {
  return std::array{score_few<kLess + 1, T>...};
}
template <typename T, int... kLess>
constexpr auto add_functions(std::integer_sequence<int, kLess...>) {
  return std::array{add_few<kLess + 1, T>...};
}
/// Element q - 1 is the function for q queries.
template <typename T>
constexpr auto kScoreFew = score_functions<T>(std::make_integer_sequence<int, kMostQueries>());
template <typename T>
constexpr auto kAddFew = add_functions<T>(std::make_integer_sequence<int, kMostQueries>());

/// Converts the `width` features of a head from `first` on to float32.
template <typename T>
HWY_INLINE void widen_row(const T* head, std::int64_t head_size, std::int64_t first, std::int64_t width,
                          float* out) {
  std::int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes)
    hn::StoreU(load_features(head, head_size, first + i), Floats(), out + i);
  if constexpr (kHasRest<T>) {
    for (; i < width; ++i) out[i] = widen(head[first + i]);
  }
}

/// Converts a panel row's features to float32. A constant number of vectors stays in registers; a loop of
/// variable length would become a copy in memory, which is slow to start.
template <typename T>
HWY_INLINE void widen_panel_row(const T* head, std::int64_t head_size, std::int64_t first, float* out) {
  const std::int64_t width = std::min(kPanel, head_size - first);
  if (width < kPanel) {
    widen_row(head, head_size, first, width, out);
    return std::fill(out + width, out + kPanel, 0.0f);
  }
#pragma GCC unroll 16
  for (std::int64_t i = 0; i < kPanel; i += kLanes)
    hn::StoreU(load_features(head, head_size, first + i), Floats(), out + i);
}

/// Packs the keys of one head into panels [positions / 64, head_size, 64] and its values into [head_size /
/// 64, positions, 64], without scales. Each run is prefetched while the previous run is packed, because the
/// processor itself does not prefetch across blocks.
template <typename T>
HWY_INLINE void pack(const Runs<T>& runs, std::int64_t total, float* packed_keys, float* packed_values) {
  const std::int64_t head_size = runs.head_size;
  for (std::int64_t run = 0, begin = 0; begin < total; ++run, begin += runs.length) {
    const std::int64_t count = std::min(runs.length, total - begin);
    const T* const keys = runs.keys(run);
    const T* const values = runs.values(run);
    const std::int64_t next = begin + runs.length < total ? run + 1 : run;
    const T* const next_keys = runs.keys(next);
    const T* const next_values = runs.values(next);
    for (std::int64_t p = 0; p < count; ++p) {
      for (std::int64_t i = 0; i < head_size && next > run; i += kElementsOfLine<T>) {
        __builtin_prefetch(next_keys + p * runs.step + i, 0, 2);
        __builtin_prefetch(next_values + p * runs.step + i, 0, 2);
      }
      float* const column = packed_keys + (begin + p) / kPanel * head_size * kPanel + (begin + p) % kPanel;
      for (std::int64_t first = 0; first < head_size; first += kPanel) {
        HWY_ALIGN float features[kPanel];
        const std::int64_t width = std::min(kPanel, head_size - first);
        widen_panel_row(keys + p * runs.step, head_size, first, features);
        for (std::int64_t i = 0; i < width; ++i) column[(first + i) * kPanel] = features[i];
      }
    }
    for (std::int64_t panel = 0; panel < divide_up(head_size, kPanel); ++panel) {
      for (std::int64_t p = 0; p < count; ++p) {
        widen_panel_row(values + p * runs.step, head_size, panel * kPanel,
                        packed_values + (panel * total + begin + p) * kPanel);
      }
    }
  }
  for (std::int64_t p = total; p < divide_up(total, kHalfPanel) * kHalfPanel; ++p) {
    float* const column = packed_keys + p / kPanel * head_size * kPanel + p % kPanel;
    for (std::int64_t i = 0; i < head_size; ++i) column[i * kPanel] = 0.0f;
  }
}

/// How many queries are computed at once: each needs one register per level of the sums below.
constexpr int kTogether = kAvx512 ? 6 : 3;

/// Computes sums[q] for a vector of positions: the lanes `first` .. first + kCount - 1 of q · k in
/// multiply_keys, added as in sums_of_lanes. Each lane is the sum over every kLanes-th feature.
template <int kCount>
HWY_INLINE void add_lanes(const float* const* queries, const float* keys, std::int64_t first,
                          std::int64_t whole, hn::Vec<Floats>* sums) {
  const Floats d;
  if constexpr (kCount == 1) {
    for (int q = 0; q < kTogether; ++q) sums[q] = hn::Zero(d);
    for (std::int64_t i = first; i < whole; i += kLanes) {
      const auto key = hn::Load(d, keys + i * kPanel);
#pragma GCC unroll 8
      for (int q = 0; q < kTogether; ++q) sums[q] = hn::MulAdd(hn::Set(d, queries[q][i]), key, sums[q]);
    }
  } else {
    hn::Vec<Floats> others[kTogether];
    add_lanes<kCount / 2>(queries, keys, first, whole, sums);
    add_lanes<kCount / 2>(queries, keys, first + kCount / 2, whole, others);
#pragma GCC unroll 8
    for (int q = 0; q < kTogether; ++q) sums[q] = hn::Add(sums[q], others[q]);
  }
}

/// multiply_keys with packed keys, again without the features that do not fill a vector.
HWY_INLINE void multiply_packed_keys(const QueryTile& tile, const float* packed_keys, std::int64_t head_size,
                                     std::int64_t score_stride, float* scores) {
  const std::int64_t whole = head_size - head_size % kLanes, seen = tile.seen();
  for (std::int64_t row = 0; row < tile.rows; row += kTogether) {
    const float* own[kTogether];  // past the last query, the last one is repeated and its result ignored
    for (int q = 0; q < kTogether; ++q) own[q] = tile.queries + std::min(row + q, tile.rows - 1) * head_size;
    for (std::int64_t first = 0; first < seen; first += kLanes) {
      hn::Vec<Floats> sums[kTogether];
      add_lanes<kLanes>(own, packed_keys + first / kPanel * head_size * kPanel + first % kPanel, 0, whole,
                        sums);
      for (int q = 0; q < std::min<std::int64_t>(kTogether, tile.rows - row); ++q) {
        hn::Store(sums[q], Floats(), scores + (row + q) * score_stride + first);
      }
    }
  }
}

/// Attention for a tile of queries on packed keys and values of `total` positions. `runs` holds them
/// unpacked, for the features that do not fill a vector and for the scales.
template <typename T>
HWY_INLINE void attend_tile(const QueryTile& tile, const Runs<T>& runs, const float* packed_keys,
                            const float* packed_values, std::int64_t total, float* scores, float* out) {
  const std::int64_t head_size = runs.head_size, rest = head_size % kLanes, whole = head_size - rest;
  const std::int64_t seen = tile.seen(), score_stride = divide_up(total, kHalfPanel) * kHalfPanel;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_size));
  multiply_packed_keys(tile, packed_keys, head_size, score_stride, scores);
  multiply_by_all_scales(runs, &Runs<T>::keys, seen, tile.rows, score_stride, scores);
  float inverse_sums[kTileRows] = {};
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    float* const own = scores + row * score_stride;
    if (rest > 0) add_rest_of_scores(tile.queries + row * head_size, runs, tile.seen_by(row), whole, own);
    inverse_sums[row] = exponentials(own, scale, tile.first_seen(row), tile.seen_by(row), seen);
  }
  multiply_by_all_scales(runs, &Runs<T>::values, seen, tile.rows, score_stride, scores);
  multiply_panels(scores, tile.rows, score_stride, packed_values, total * kPanel, seen, 0,
                  divide_up(head_size, kHalfPanel),
                  [=](std::int64_t row, std::int64_t column, std::int64_t count, const float* products)
                      HWY_ATTR {
                        count = std::min(count, head_size - column);
                        float* const to = out + row * head_size + column;
                        for (std::int64_t i = 0; i < count; ++i) to[i] = products[i] * inverse_sums[row];
                      });
  for (std::int64_t row = 0; row < tile.rows && rest > 0; ++row) {
    float* const own = out + row * head_size;
    rest_of_values(scores + row * score_stride, runs, tile.seen_by(row), whole, own);
    for (std::int64_t i = whole; i < head_size; ++i) own[i] *= inverse_sums[row];
  }
}

/// Calls run(runs) with the head's keys and values as Runs of their type.
template <typename Run>
HWY_INLINE void with_runs(const HeadOfCache& head, const Run& run) {
  if (head.keys_values.keys.dtype() == DType::kInt8) return run(Runs<std::int8_t>(head));
  if (head.keys_values.keys.dtype() == DType::kInt4) return run(Runs<Int4Byte>(head));
  with_elements(head.keys_values.keys.dtype(), head.keys_values.keys.data<void>(),
                [&](auto* keys) HWY_ATTR { run(Runs<std::remove_pointer_t<decltype(keys)>>(head)); });
}

/// Whether the keys and values of this head are multiplied as bfloat16 (bfloat16_attention.h).
HWY_INLINE bool multiplies_halves(const HeadOfCache& head) {
  return kAvx512 && bfloat16::multiplies(head.keys_values.keys.dtype());
}

// Attention for a tile of queries on unpacked keys and values, in three parts.

/// The scores of the positions `first` .. `last` - 1. `first` is a multiple of 16, and so is `last`, except
/// at the end.
HWY_ATTR void score_in_place(const QueryTile& tile, const HeadOfCache& head, IndexRange positions,
                             float* scores, float* scratch) {
  if (multiplies_halves(head)) return bfloat16::score_in_place(tile, head, positions, scores, scratch);
  with_runs(head, [&]<typename T>(const Runs<T>& runs) HWY_ATTR {
    kScoreFew<T>[static_cast<std::size_t>(tile.rows - 1)](tile, runs, positions, scores);
  });
}

/// The weights of query `row` from its scores. Returns 1 / their sum.
HWY_ATTR float weigh_in_place(const QueryTile& tile, const HeadOfCache& head, std::int64_t row,
                              float* scores) {
  if (multiplies_halves(head)) return bfloat16::weigh_in_place(tile, head, row, scores);
  float inverse_sum = 0.0f;
  with_runs(head, [&]<typename T>(const Runs<T>& runs)
                      HWY_ATTR { inverse_sum = weigh_row(tile, runs, row, scores); });
  return inverse_sum;
}

/// The features `first` .. `last` - 1 of out [rows, head_size], both multiples of 32, except at the end.
/// `next` is the head that probably follows.
HWY_ATTR void add_in_place(const QueryTile& tile, const HeadOfCache& head, const HeadOfCache& next,
                           IndexRange features, const float* inverse_sums, float* scores, float* scratch,
                           float* out) {
  if (multiplies_halves(head)) {
    return bfloat16::add_in_place(tile, head, next, features, inverse_sums, scores, scratch, out);
  }
  with_runs(head, [&]<typename T>(const Runs<T>& runs) HWY_ATTR {
    kAddFew<T>[static_cast<std::size_t>(tile.rows - 1)](tile, runs, Runs<T>(next), features, inverse_sums,
                                                        scores, out);
  });
}

/// Attention for a tile of queries on `total` packed positions. The first `skipped` of them, whole panels,
/// are not in `head`.
HWY_ATTR void attend_packed(const QueryTile& tile, const HeadOfCache& head, void* packed_keys,
                            void* packed_values, std::int64_t total, std::int64_t skipped, float* scores,
                            float* scratch, float* out) {
  if (multiplies_halves(head)) {
    return bfloat16::attend_packed(tile, head, static_cast<std::uint16_t*>(packed_keys),
                                   static_cast<std::uint16_t*>(packed_values), total, skipped, scores,
                                   scratch, out);
  }
  with_runs(head, [&]<typename T>(const Runs<T>& runs) HWY_ATTR {
    attend_tile(tile, runs, static_cast<const float*>(packed_keys) + skipped * runs.head_size,
                static_cast<const float*>(packed_values) + skipped * kPanel, total, scores, out);
  });
}

/// Rotates heads [rows, head_size].
HWY_ATTR void rotate_rows(float* heads, std::int64_t rows, std::int64_t head_size) {
  for (std::int64_t row = 0; row < rows; ++row) rotate_in_vectors(heads + row * head_size, head_size);
}

/// Stores the result of a query in `out`, rounded to its type.
HWY_ATTR void store_result(const float* result, std::int64_t head_size, std::int64_t place,
                           const Tensor& out) {
  with_elements(out.dtype(), out.data<void>(),
                [&](auto* to) HWY_ATTR { narrow(result, head_size, to + place); });
}

/// The maximum number of queries per tile on packed keys and values of this type.
HWY_ATTR std::int64_t packed_queries(DType dtype) {
  return kAvx512 && bfloat16::multiplies(dtype) ? bfloat16::packed_queries() : kTileRows;
}

HWY_ATTR void pack_head(const HeadOfCache& head, std::int64_t total, void* packed_keys, void* packed_values) {
  if (multiplies_halves(head)) {
    return bfloat16::pack(head, total, static_cast<std::uint16_t*>(packed_keys),
                          static_cast<std::uint16_t*>(packed_values));
  }
  with_runs(head, [&]<typename T>(const Runs<T>& runs) HWY_ATTR {
    pack(runs, total, static_cast<float*>(packed_keys), static_cast<float*>(packed_values));
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace staircase
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace staircase {
namespace {

HWY_EXPORT(score_in_place);
HWY_EXPORT(weigh_in_place);
HWY_EXPORT(add_in_place);
HWY_EXPORT(attend_packed);
HWY_EXPORT(rotate_rows);
HWY_EXPORT(store_result);
HWY_EXPORT(packed_queries);
HWY_EXPORT(pack_head);

static_assert(kTileQueries == HWY_NAMESPACE::kTileRows);

/// One head of keys and values of one sequence, and the queries that share it. Positions before the window of
/// the first query are left out.
struct Head {
  std::int64_t queries;  ///< number of queries
  std::int64_t start;    ///< the position of the first token
  std::int64_t total;    ///< number of positions, including the new ones
  std::int64_t place;    ///< the index of the first query, and of its result
  HeadOfCache cache;
  float* packed_keys = nullptr;
  float* packed_values = nullptr;
};

/// The positions from which on threads that would be idle otherwise take a share of a head. Sharing costs two
/// more barriers.
constexpr std::int64_t kSharedPositions = 1024;

/// Divides the units of all works evenly among the threads: calls do_units(thread, work, units) for a range
/// of a work's units, 0 .. units_of(work) - 1.
template <typename Work, typename UnitsOf, typename DoUnits>
void share_units(ThreadTeam& team, const std::vector<Work>& works, const UnitsOf& units_of,
                 const DoUnits& do_units) {
  std::int64_t total = 0;
  for (const Work& work : works) total += units_of(work);
  team.run([&](int thread) {
    const IndexRange share = share_of(total, team.size(), thread);
    std::int64_t begin = 0;
    for (const Work& work : works) {
      const std::int64_t units = units_of(work);
      const IndexRange own{std::max(share.first - begin, std::int64_t{0}),
                           std::min(share.last - begin, units)};
      if (own.first < own.last) do_units(thread, work, own);
      begin += units;
    }
  });
}

}  // namespace

void CpuDevice::attention(const Batch& batch, const Tensor& queries, const KeysValues& keys_values,
                          Tensor& out) {
  const std::int64_t n_kv_head = keys_values.keys.dim(1), head_size = keys_values.head_size();
  const std::int64_t width = queries.dim(1), group = width / (n_kv_head * head_size);
  const std::int64_t padded_head = divide_up(head_size, kPanel) * kPanel;
  const bool rotated = keys_values.keys.dtype() == DType::kInt4;
  const auto* const offsets = batch.offsets.data<std::int32_t>();
  const auto* const starts = batch.starts.data<std::int32_t>();
  // Positions before the window are left out only in whole panels and blocks, so every query adds in the same
  // order as without a window.
  const std::int64_t window = keys_values.window, step = keys_values.blocks.size() > 0
                                                             ? std::lcm(kPanel, keys_values.keys.dim(2))
                                                             : kPanel;
  const auto whole_steps = [=](std::int64_t positions) {
    return std::max<std::int64_t>(positions, 0) / step * step;
  };

  std::vector<Head> heads;
  std::int64_t longest = 0, packed_floats = 0;
  for (std::int64_t s = 0; s < batch.n_sequences(); ++s) {
    const std::int64_t count = offsets[s + 1] - offsets[s], first = whole_steps(starts[s] + 1 - window);
    const std::int64_t start = starts[s] - first, total = start + count;
    longest = std::max(longest, total);
    if (count >= kManyQueries)
      packed_floats += n_kv_head * divide_up(total, kPanel) * kPanel * 2 * padded_head;
    for (std::int64_t h = 0; h < n_kv_head; ++h) {
      heads.push_back({count * group,
                       start,
                       total,
                       offsets[s] * width + h * group * head_size,
                       {keys_values, static_cast<std::int32_t>(s), h, first}});
    }
  }
  // In a browser, or with matrix instructions, a packed tile has more queries than an unpacked one.
  const std::int64_t packed_queries = HWY_DYNAMIC_DISPATCH(packed_queries)(keys_values.keys.dtype());
  // How many queries read keys and values together: the queries of whole tokens if one group fits.
  const std::int64_t together = group == 1             ? std::min(kTileQueries, kMostQueries)
                                : group > kMostQueries ? kMostQueries
                                                       : kMostQueries / group * group;

  struct Tile {
    const Head* head;
    std::int64_t first;  ///< the tile's first query
  };
  std::vector<Tile> few, many;  // the tiles on unpacked keys and values, and on packed ones
  std::int64_t n_unpacked = 0;
  for (const Head& head : heads) {
    const bool is_packed = head.queries >= kManyQueries * group;
    for (std::int64_t first = 0; first < head.queries; first += is_packed ? packed_queries : together)
      (is_packed ? many : few).push_back({&head, first});
    if (!is_packed) ++n_unpacked;
  }
  // If one head a thread keeps the threads unequally busy, they share each head.
  const std::int64_t threads = team_.size();
  const bool shares =
      longest >= kSharedPositions && 5 * divide_up(n_unpacked, threads) * threads > 6 * n_unpacked;

  // The memory of a tile: scores and weights, queries and results, stored contiguously.
  const std::int64_t queries_at_once = std::max(kMostQueries, packed_queries);
  const std::int64_t score_floats = std::max(queries_at_once * divide_up(longest, kHalfPanel) * kHalfPanel,
                                             bfloat16::score_floats(queries_at_once, longest));
  const std::int64_t row_floats = queries_at_once * (2 * head_size + 1);
  const std::int64_t tile_floats = divide_up(score_floats + row_floats, kPanel) * kPanel;
  const std::int64_t thread_floats = divide_up(bfloat16::scratch_floats(head_size), kPanel) * kPanel;
  const std::int64_t n_memories = std::max<std::int64_t>(threads, shares ? std::ssize(few) : 0);
  float* const memory = scratch(threads * thread_floats + n_memories * tile_floats + packed_floats);
  const auto scratch_of = [=](int thread) { return memory + thread * thread_floats; };
  float* const memories = memory + threads * thread_floats;

  float* packed = memories + n_memories * tile_floats;
  for (Head& head : heads) {
    if (head.queries < kManyQueries * group) continue;
    const std::int64_t padded_total = divide_up(head.total, kPanel) * kPanel;
    head.packed_keys = packed;
    head.packed_values = packed += padded_total * padded_head;
    packed += padded_total * padded_head;
  }

  // The index of a head's query among all queries.
  const auto place_of = [=](const Head& head, std::int64_t query) {
    return head.place + query / group * width + query % group * head_size;
  };
  /// A tile with its memory. Positions that no query of the tile sees are skipped in whole steps.
  struct Work {
    QueryTile tile;
    HeadOfCache cache;
    std::int64_t skipped;
    float *scores, *results, *inverse_sums;
  };
  const auto begin = [&](const Tile& of, std::int64_t most, std::int64_t number) {
    float* const scores = memories + number * tile_floats;
    float* const gathered = scores + score_floats;
    const Head& head = *of.head;
    Work work{{gathered, std::min(most, head.queries - of.first), of.first, group, head.start, window},
              head.cache,
              0,
              scores,
              gathered + queries_at_once * head_size,
              gathered + 2 * queries_at_once * head_size};
    work.skipped = whole_steps(work.tile.first_seen(0));
    work.tile.start -= work.skipped;
    work.cache.first += work.skipped;
    for (std::int64_t row = 0; row < work.tile.rows; ++row) {
      std::copy_n(queries.data<float>() + place_of(head, of.first + row), head_size,
                  gathered + row * head_size);
    }
    if (rotated) HWY_DYNAMIC_DISPATCH(rotate_rows)(gathered, work.tile.rows, head_size);
    return work;
  };
  const auto finish = [&](const Tile& of, const Work& work) {
    if (rotated) HWY_DYNAMIC_DISPATCH(rotate_rows)(work.results, work.tile.rows, head_size);
    for (std::int64_t row = 0; row < work.tile.rows; ++row) {
      HWY_DYNAMIC_DISPATCH(store_result)
      (work.results + row * head_size, head_size, place_of(*of.head, of.first + row), out);
    }
  };
  const auto weigh = [&](const Work& work, IndexRange rows) {
    for (std::int64_t row = rows.first; row < rows.last; ++row)
      work.inverse_sums[row] = HWY_DYNAMIC_DISPATCH(weigh_in_place)(work.tile, work.cache, row, work.scores);
  };

  if (shares) {
    std::vector<Work> works;
    for (const Tile& tile : few) works.push_back(begin(tile, together, std::ssize(works)));
    share_units(
        team_, works, [](const Work& work) { return divide_up(work.tile.seen(), kPanel); },
        [&](int thread, const Work& work, IndexRange panels) {
          HWY_DYNAMIC_DISPATCH(score_in_place)
          (work.tile, work.cache, {panels.first * kPanel, std::min(panels.last * kPanel, work.tile.seen())},
           work.scores, scratch_of(thread));
        });
    share_units(
        team_, works, [](const Work& work) { return work.tile.rows; },
        [&](int, const Work& work, IndexRange rows) { weigh(work, rows); });
    share_units(
        team_, works, [=](const Work&) { return divide_up(head_size, kHalfPanel); },
        [&](int thread, const Work& work, IndexRange halves) {
          HWY_DYNAMIC_DISPATCH(add_in_place)
          (work.tile, work.cache, work.cache,
           {halves.first * kHalfPanel, std::min(halves.last * kHalfPanel, head_size)}, work.inverse_sums,
           work.scores, scratch_of(thread), work.results);
        });
    for (std::size_t i = 0; i < few.size(); ++i) finish(few[i], works[i]);
  }
  parallel_each(team_, shares && many.empty() ? 0 : std::ssize(heads), [&](int thread, std::int64_t i) {
    const Head& head = heads[static_cast<std::size_t>(i)];
    if (head.packed_keys != nullptr) {
      HWY_DYNAMIC_DISPATCH(pack_head)
      (head.cache, head.total, head.packed_keys, head.packed_values);
      return;
    }
    const Head& next = heads[static_cast<std::size_t>((i + threads) % std::ssize(heads))];
    for (std::int64_t first = 0; first < head.queries && !shares; first += together) {
      const Work work = begin({&head, first}, together, thread);
      HWY_DYNAMIC_DISPATCH(score_in_place)
      (work.tile, work.cache, {0, work.tile.seen()}, work.scores, scratch_of(thread));
      weigh(work, {0, work.tile.rows});
      const HeadOfCache& then = first + work.tile.rows < head.queries ? work.cache : next.cache;
      HWY_DYNAMIC_DISPATCH(add_in_place)
      (work.tile, work.cache, then, {0, head_size}, work.inverse_sums, work.scores, scratch_of(thread),
       work.results);
      finish({&head, first}, work);
    }
  });
  parallel_each(team_, std::ssize(many), [&](int thread, std::int64_t i) {
    const Tile& tile = many[static_cast<std::size_t>(i)];
    // The queries of a head are short pieces far apart, so the next tile's queries are prefetched.
    if (const std::int64_t next = i + threads; next < std::ssize(many)) {
      const auto& [next_head, next_first] = many[static_cast<std::size_t>(next)];
      for (std::int64_t q = next_first; q < std::min(next_first + packed_queries, next_head->queries); ++q) {
        const float* const query = queries.data<float>() + place_of(*next_head, q);
        for (std::int64_t j = 0; j < head_size; j += HWY_NAMESPACE::kElementsOfLine<float>)
          hwy::Prefetch(query + j);
      }
    }
    const Work work = begin(tile, packed_queries, thread);
    HWY_DYNAMIC_DISPATCH(attend_packed)
    (work.tile, work.cache, tile.head->packed_keys, tile.head->packed_values, tile.head->total, work.skipped,
     work.scores, scratch_of(thread), work.results);
    finish(tile, work);
  });
}

}  // namespace staircase
#endif  // HWY_ONCE
