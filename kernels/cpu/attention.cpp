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
// bytes of keys and values per position and head. 16-bit caches halve that, and int8 halves it again.
//
// Keys and values in 16 bits or int8 are widened when they are loaded into a register, which is exact. A
// key's scale multiplies its score, and a value's scale multiplies its weight: one multiplication instead of
// head_size. In int4 each vector becomes least + level · step. An int4 cache holds rotated keys and values
// (KeysValues in device.h). Each query is also rotated, which does not change the scores, and each result is
// rotated back.
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
#include "kernels/cpu/runs.h"
#include "kernels/cpu/tile-inl.h"
#include "kernels/hadamard.h"

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

/// Computes multiply_keys for the `count` keys of one run. `near` and `far` are as in Ahead.
template <int kQueries, typename T>
HWY_INLINE void multiply_run(const float* queries, std::int64_t stride, const Runs<T>& runs, const T* keys,
                             std::int64_t count, const Ahead<T>& ahead, const T* near, const T* far,
                             std::int64_t score_stride, float* scores) {
  const Floats d;
  const std::int64_t head_size = runs.head_size;
  for (std::int64_t first = 0; first < count; first += kLanes) {
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

/// scores [kQueries, score_stride] = q · k for each query and key, without the features that do not fill a
/// vector. After the last keys, the first values are prefetched.
template <int kQueries, typename T>
HWY_INLINE void multiply_keys(const float* queries, std::int64_t stride, Runs<T> runs, std::int64_t total,
                              std::int64_t score_stride, float* scores) {
  static_assert(16 % kLanes == 0, "a block begins where a vector of scores begins");
  const Ahead<T> ahead(runs, total);
  const std::int64_t count = divide_up(total, runs.length);
  const auto keys_then_values = [&](std::int64_t run) HWY_ATTR {
    return run < count ? runs.keys(run) : runs.values(std::min(run - count, count - 1));
  };
  for (std::int64_t run = 0, begin = 0; begin < total; ++run, begin += runs.length) {
    multiply_run<kQueries>(queries, stride, runs, runs.keys(run), std::min(runs.length, total - begin), ahead,
                           keys_then_values(run + ahead.runs), keys_then_values(run + ahead.runs + 1),
                           score_stride, scores + begin);
  }
}

/// out[q] = the sum of the values, each times q's weight for it, again without the features that do not fill
/// a vector. If values have scales, the weights are multiplied by them in place. After the last values, the
/// first keys of the next head are prefetched.
template <int kQueries, typename T>
HWY_INLINE void add_values(float* weights, std::int64_t weight_stride, Runs<T> runs, std::int64_t total,
                           const Runs<T>& next_head, std::int64_t stride, float* out) {
  const Floats d;
  const std::int64_t head_size = runs.head_size;
  // How many registers hold a query's sums. They are kept over all positions.
  constexpr std::int64_t kRegisters =
      kQueries > kTileQueries ? kAccumulators / 12
                              : std::clamp<std::int64_t>(kAccumulators / kQueries, 1, 64 / kLanes);
  const std::int64_t vectors = head_size / kLanes;
  const Ahead<T> ahead(runs, total);
  const std::int64_t count = divide_up(total, runs.length);
  const auto values_then_next = [&](std::int64_t run)
                                    HWY_ATTR { return run < count ? runs.values(run) : next_head.keys(0); };
  for (std::int64_t first = 0; first < vectors; first += kRegisters) {
    const std::int64_t registers = std::min(kRegisters, vectors - first);
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
        if (first == 0 && p % kLanes == 0) {
          multiply_by_scales(runs, value, std::min(runs.length, total - begin) - p, kQueries, weight_stride,
                             weights + begin + p);
        }
        for (std::int64_t i = 0; i < kRegisters * kLanes; i += kElementsOfLine<T>)
          __builtin_prefetch(next + first * kLanes + i, 0, 2);
        hn::Vec<Floats> weight[kQueries];
#pragma GCC unroll 8
        for (int q = 0; q < kQueries; ++q) weight[q] = hn::Set(d, weights[q * weight_stride + begin + p]);
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
        if (kRegisters * kLanes == kUsualHead && head_size == kUsualHead) {
          add(kUsualHead, 0, kRegisters);
        } else {
          registers == kRegisters ? add(head_size, first, kRegisters) : add(head_size, first, registers);
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

/// Attention for a tile of kQueries queries. Each key and each value is read once for all of them, and then
/// the keys of the `next` head are prefetched. out [kQueries, head_size]. A row of `scores` has room for all
/// positions, rounded up to whole halves of a panel.
template <int kQueries, typename T>
HWY_NOINLINE void attend_few(const QueryTile& tile, const Runs<T>& runs, const Runs<T>& next, float* scores,
                             float* out) {
  const std::int64_t total = tile.seen(), score_stride = divide_up(total, kHalfPanel) * kHalfPanel;
  const std::int64_t head_size = runs.head_size, rest = head_size % kLanes, whole = head_size - rest;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_size));
  multiply_keys<kQueries>(tile.queries, head_size, runs, total, score_stride, scores);
  float inverse_sums[kQueries];
  for (int q = 0; q < kQueries; ++q) {
    float* const own = scores + q * score_stride;
    const std::int64_t seen = tile.seen_by(q);
    if (rest > 0) add_rest_of_scores(tile.queries + q * head_size, runs, seen, whole, own);
    inverse_sums[q] = exponentials(own, scale, tile.first_seen(q), seen, total);
  }
  add_values<kQueries>(scores, score_stride, runs, total, next, head_size, out);
  for (int q = 0; q < kQueries; ++q) {
    float* const own = out + q * head_size;
    if (rest > 0) rest_of_values(scores + q * score_stride, runs, tile.seen_by(q), whole, own);
    for (std::int64_t i = 0; i < head_size; ++i) own[i] *= inverse_sums[q];
  }
}

template <typename T>
using AttendFunction = void (*)(const QueryTile&, const Runs<T>&, const Runs<T>&, float*, float*);
template <typename T, int... kLess>
constexpr auto attend_functions(std::integer_sequence<int, kLess...>) {
  return std::array<AttendFunction<T>, sizeof...(kLess)>{attend_few<kLess + 1, T>...};
}
/// Element q - 1 is attend_few for q queries.
template <typename T>
constexpr auto kAttendFew = attend_functions<T>(std::make_integer_sequence<int, kMostQueries>());

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

/// Whether keys and values of type T are multiplied as bfloat16 (bfloat16_attention.h).
template <typename T>
HWY_INLINE bool multiplies_halves() {
  return kAvx512 && std::is_same_v<T, hwy::bfloat16_t> && has_bfloat16_tile();
}

/// Attention for a tile of queries on unpacked keys and values. `next` is the head that probably follows.
HWY_ATTR void attend_in_place(const QueryTile& tile, const HeadOfCache& head, const HeadOfCache& next,
                              float* scores, float* out) {
  with_runs(head, [&]<typename T>(const Runs<T>& runs) HWY_ATTR {
    if (multiplies_halves<T>()) {
      bfloat16::attend_in_place(tile, Runs<std::uint16_t>(head), Runs<std::uint16_t>(next), scores, out);
    } else {
      kAttendFew<T>[static_cast<std::size_t>(tile.rows - 1)](tile, runs, Runs<T>(next), scores, out);
    }
  });
}

/// Attention for a tile of queries on `total` packed positions. The first `skipped` of them, whole panels,
/// are not in `head`.
HWY_ATTR void attend_packed(const QueryTile& tile, const HeadOfCache& head, const void* packed_keys,
                            const void* packed_values, std::int64_t total, std::int64_t skipped,
                            float* scores, float* out) {
  with_runs(head, [&]<typename T>(const Runs<T>& runs) HWY_ATTR {
    if (multiplies_halves<T>()) {
      bfloat16::attend_packed(tile, runs.head_size, static_cast<const std::uint16_t*>(packed_keys),
                              static_cast<const std::uint16_t*>(packed_values), total, skipped, scores, out);
    } else {
      attend_tile(tile, runs, static_cast<const float*>(packed_keys) + skipped * runs.head_size,
                  static_cast<const float*>(packed_values) + skipped * kPanel, total, scores, out);
    }
  });
}

/// Stores the result of a query in `out`, rounded to its type.
HWY_ATTR void store_result(const float* result, std::int64_t head_size, std::int64_t place,
                           const Tensor& out) {
  with_elements(out.dtype(), out.data<void>(),
                [&](auto* to) HWY_ATTR { narrow(result, head_size, to + place); });
}

/// The maximum number of queries per tile on packed keys and values of this type.
HWY_ATTR std::int64_t packed_queries(DType dtype) {
  return dtype == DType::kBFloat16 && multiplies_halves<hwy::bfloat16_t>() ? bfloat16::packed_queries()
                                                                           : kTileRows;
}

HWY_ATTR void pack_head(const HeadOfCache& head, std::int64_t total, void* packed_keys, void* packed_values) {
  with_runs(head, [&]<typename T>(const Runs<T>& runs) HWY_ATTR {
    if (multiplies_halves<T>()) {
      bfloat16::pack(Runs<std::uint16_t>(head), total, static_cast<std::uint16_t*>(packed_keys),
                     static_cast<std::uint16_t*>(packed_values));
    } else {
      pack(runs, total, static_cast<float*>(packed_keys), static_cast<float*>(packed_values));
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace staircase
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace staircase {
namespace {

HWY_EXPORT(attend_in_place);
HWY_EXPORT(attend_packed);
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
  const std::int64_t queries_at_once = std::max(kMostQueries, packed_queries);
  const std::int64_t score_floats = std::max(queries_at_once * divide_up(longest, kHalfPanel) * kHalfPanel,
                                             bfloat16::scratch_floats(head_size, longest));
  // The queries of a tile and its results, stored contiguously.
  const std::int64_t tile_floats = queries_at_once * head_size;
  const std::int64_t thread_floats = score_floats + divide_up(2 * tile_floats, kPanel) * kPanel;
  float* const memory = scratch(team_.size() * thread_floats + packed_floats);

  struct Tile {
    const Head* head;
    std::int64_t first;  ///< the tile's first query
  };
  std::vector<Tile> tiles;
  float* packed = memory + team_.size() * thread_floats;
  for (Head& head : heads) {
    if (head.queries < kManyQueries * group) continue;
    const std::int64_t padded_total = divide_up(head.total, kPanel) * kPanel;
    head.packed_keys = packed;
    head.packed_values = packed += padded_total * padded_head;
    packed += padded_total * padded_head;
    for (std::int64_t first = 0; first < head.queries; first += packed_queries)
      tiles.push_back({&head, first});
  }

  // How many queries read keys and values together: the queries of whole tokens if one group fits.
  const std::int64_t together = group == 1             ? std::min(kTileQueries, kMostQueries)
                                : group > kMostQueries ? kMostQueries
                                                       : kMostQueries / group * group;
  // The index of a head's query among all queries.
  const auto place_of = [=](const Head& head, std::int64_t query) {
    return head.place + query / group * width + query % group * head_size;
  };
  // Calls attend(tile, cache, skipped, scores, to) for the tile of up to `most` queries of this head that
  // begins with query `first`.
  const auto with_tile = [&](int thread, const Head& head, std::int64_t first, std::int64_t most,
                             const auto& attend) {
    float* const scores = memory + thread * thread_floats;
    float* const gathered = scores + score_floats;
    float* const results = gathered + tile_floats;
    QueryTile tile{gathered, std::min(most, head.queries - first), first, group, head.start, window};
    const std::int64_t skipped = whole_steps(tile.first_seen(0));
    tile.start -= skipped;
    for (std::int64_t row = 0; row < tile.rows; ++row) {
      float* const query = gathered + row * head_size;
      std::copy_n(queries.data<float>() + place_of(head, first + row), head_size, query);
      if (rotated) rotate_head(query, head_size);
    }
    HeadOfCache cache = head.cache;
    cache.first += skipped;
    attend(tile, cache, skipped, scores, results);
    for (std::int64_t row = 0; row < tile.rows; ++row) {
      if (rotated) rotate_head(results + row * head_size, head_size);
      HWY_DYNAMIC_DISPATCH(store_result)
      (results + row * head_size, head_size, place_of(head, first + row), out);
    }
  };
  parallel_each(team_, static_cast<std::int64_t>(heads.size()), [&](int thread, std::int64_t i) {
    const Head& head = heads[static_cast<std::size_t>(i)];
    if (head.packed_keys != nullptr) {
      HWY_DYNAMIC_DISPATCH(pack_head)
      (head.cache, head.total, head.packed_keys, head.packed_values);
      return;
    }
    const Head& next = heads[static_cast<std::size_t>((i + team_.size()) % std::ssize(heads))];
    for (std::int64_t first = 0; first < head.queries; first += together) {
      with_tile(thread, head, first, together,
                [&](const QueryTile& tile, const HeadOfCache& cache, std::int64_t, float* scores, float* to) {
                  const HeadOfCache& then = first + tile.rows < head.queries ? cache : next.cache;
                  HWY_DYNAMIC_DISPATCH(attend_in_place)(tile, cache, then, scores, to);
                });
    }
  });
  parallel_each(team_, static_cast<std::int64_t>(tiles.size()), [&](int thread, std::int64_t i) {
    const Head& head = *tiles[static_cast<std::size_t>(i)].head;
    const std::int64_t first = tiles[static_cast<std::size_t>(i)].first;
    // The queries of a head are short pieces far apart, so the next tile's queries are prefetched.
    if (const std::int64_t next = i + team_.size(); next < std::ssize(tiles)) {
      const auto& [next_head, next_first] = tiles[static_cast<std::size_t>(next)];
      for (std::int64_t q = next_first; q < std::min(next_first + packed_queries, next_head->queries); ++q) {
        const float* const query = queries.data<float>() + place_of(*next_head, q);
        for (std::int64_t j = 0; j < head_size; j += HWY_NAMESPACE::kElementsOfLine<float>)
          hwy::Prefetch(query + j);
      }
    }
    with_tile(
        thread, head, first, packed_queries,
        [&](const QueryTile& tile, const HeadOfCache& cache, std::int64_t skipped, float* scores, float* to) {
          HWY_DYNAMIC_DISPATCH(attend_packed)
          (tile, cache, head.packed_keys, head.packed_values, head.total, skipped, scores, to);
        });
  });
}

}  // namespace staircase
#endif  // HWY_ONCE
