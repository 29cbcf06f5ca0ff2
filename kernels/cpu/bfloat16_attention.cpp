#include "kernels/cpu/bfloat16_attention.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#include "kernels/cpu/bfloat16_target.h"
#include "kernels/cpu/bfloat16_tile.h"

namespace staircase::bfloat16 {
namespace {

constexpr int kLanes = 16;
constexpr std::int64_t kLineBytes = 64;
constexpr __mmask16 kAllLanes = 0xFFFF;

/// 32 numbers of bfloat16.
using Halves = std::uint16_t __attribute__((vector_size(64)));

/// Features of a key or a value per vector.
constexpr std::int64_t kFeatures = 32;

/// Positions that are processed at a time: one for each lane of a vector of scores.
constexpr std::int64_t kPositions = 16;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t step) {
  return divide_up(n, step) * step;
}

/// 32 features of a head, which is a key or a value, from feature i on. Past the head they are 0.
STAIRCASE_TARGET inline Halves load_features(const std::uint16_t* head, std::int64_t head_size,
                                             std::int64_t i) {
  if (i + kFeatures <= head_size) return (Halves)_mm512_loadu_si512(head + i);
  return (Halves)_mm512_maskz_loadu_epi16((1u << (head_size - i)) - 1, head + i);
}

/// Copies two neighbouring values into every lane.
STAIRCASE_TARGET inline __m512bh broadcast_pair(const std::uint16_t* values) {
  std::int32_t pair;
  std::memcpy(&pair, values, sizeof pair);
  return (__m512bh)_mm512_set1_epi32(pair);
}

/// Lane i of the result is the sum of the lanes of vectors[i]. The first two steps work within groups of four
/// lanes, the last two on whole groups.
STAIRCASE_TARGET inline __m512 sums_of_lanes(__m512* vectors) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512 a = vectors[2 * i], b = vectors[2 * i + 1];
    vectors[i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
                 __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 a = vectors[2 * i], b = vectors[2 * i + 1];
    vectors[i] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
                 __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  }
#pragma GCC unroll 2
  for (int count = 2; count > 0; count /= 2) {
#pragma GCC unroll 2
    for (int i = 0; i < count; ++i) {
      const __m512 a = vectors[2 * i], b = vectors[2 * i + 1];
      vectors[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
                   __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    }
  }
  return vectors[0];
}

/// Interleaves two rows, neighbours along the depth, into pairs. From each eight columns, first_columns takes
/// the first four, and last_columns the other four.
STAIRCASE_TARGET inline __m512bh first_columns(Halves a, Halves b) {
  return (__m512bh)__builtin_shufflevector(a, b, 0, 32, 1, 33, 2, 34, 3, 35, 8, 40, 9, 41, 10, 42, 11, 43, 16,
                                           48, 17, 49, 18, 50, 19, 51, 24, 56, 25, 57, 26, 58, 27, 59);
}
STAIRCASE_TARGET inline __m512bh last_columns(Halves a, Halves b) {
  return (__m512bh)__builtin_shufflevector(a, b, 4, 36, 5, 37, 6, 38, 7, 39, 12, 44, 13, 45, 14, 46, 15, 47,
                                           20, 52, 21, 53, 22, 54, 23, 55, 28, 60, 29, 61, 30, 62, 31, 63);
}

// ── Keys and values of an int8 or int4 cache ──

/// Whether keys or values of this type become bfloat16 before they are multiplied.
template <typename T>
constexpr bool kUnpacks = !std::is_same_v<T, std::uint16_t>;

/// Whether keys and values of this type have a scale at each position, after their features.
template <typename T>
constexpr bool kHasScales = std::is_same_v<T, std::int8_t>;

inline float scale_after(const std::int8_t* features, std::int64_t head_size) {
  float scale;
  std::memcpy(&scale, features + head_size, sizeof scale);
  return scale;
}

/// 16 numbers that are `step` bytes apart. Past the first `count`, the last of these is repeated.
STAIRCASE_TARGET inline __m512 gathered(const void* first, std::int64_t step, std::int64_t count = kLanes) {
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                last = _mm512_set1_epi32(static_cast<int>(count - 1));
  const __m512i places = _mm512_mullo_epi32(_mm512_maskz_min_epi32(kAllLanes, lane, last),
                                            _mm512_set1_epi32(static_cast<int>(step)));
  return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), kAllLanes, places, first, 1);
}

/// Neighbouring keys of a head as bfloat16: [count, size].
struct Rows {
  const std::uint16_t* values;
  std::int64_t size;
};

using Int32s = std::int32_t __attribute__((vector_size(64)));

/// Widens 16 bytes to integers. Without a mask, GCC 12 warns about an uninitialized vector in its own
/// intrinsics.
STAIRCASE_TARGET inline Int32s int_lanes(const std::int8_t* bytes) {
  return (Int32s)_mm512_maskz_cvtepi8_epi32(kAllLanes,
                                            _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
}
STAIRCASE_TARGET inline Int32s int_lanes(const std::uint8_t* bytes) {
  return (Int32s)_mm512_maskz_cvtepu8_epi32(kAllLanes,
                                            _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
}
STAIRCASE_TARGET inline __m512 float_lanes(Int32s integers) {
  return __builtin_convertvector(integers, __m512);
}

/// 32 features of an int8 head from feature i on, without their scale; past the head they are 0. An integer
/// of 8 bits is exact in bfloat16: the upper half of its float32.
STAIRCASE_TARGET inline Halves load_features(const std::int8_t* head, std::int64_t head_size,
                                             std::int64_t i) {
  const __m512 low = float_lanes(int_lanes(head + i)),
               high = i + kLanes < head_size ? float_lanes(int_lanes(head + i + kLanes)) : __m512{};
  return __builtin_shufflevector((Halves)low, (Halves)high, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27,
                                 29, 31, 33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63);
}

/// 32 features of an int4 head: least + level · step, rounded. A byte holds levels of features 16 apart, and
/// a group's ends are 8 of these bytes' (KeysValues in device.h).
STAIRCASE_TARGET inline Halves load_features(const Int4Byte* head, std::int64_t head_size, std::int64_t i) {
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(head);
  const Int32s pairs = int_lanes(bytes + i / 2);
  std::int32_t first, second;
  const std::uint8_t* const stored = bytes + head_size / 2 + i / kInt4CacheGroup * std::int64_t{sizeof first};
  std::memcpy(&first, stored, sizeof first);
  std::memcpy(&second, stored + sizeof first, sizeof second);
  const auto ends = (Int32s)_mm512_mask_set1_epi32(_mm512_set1_epi32(first), 0xFF00, second);
  const auto least = (__m512)(ends << 16), step = (__m512)(ends & -0x10000);
  const __m512 low = float_lanes(pairs & 15), high = float_lanes(pairs >> 4);
  return (Halves)_mm512_cvtne2ps_pbh(_mm512_fmadd_ps(high, step, least), _mm512_fmadd_ps(low, step, least));
}

/// Up to 16 keys from `kept` on. What the cache does not hold as bfloat16 is unpacked to `memory` [count,
/// width], where features past the head are 0, and as many positions are prefetched from `ahead`.
template <typename T>
STAIRCASE_TARGET Rows as_halves(const Runs<T>& runs, const T* kept, std::int64_t count, const T* ahead,
                                std::uint16_t* memory) {
  if constexpr (kUnpacks<T>) {
    const std::int64_t head_size = runs.head_size, step = runs.step, width = round_up(head_size, kFeatures);
    for (std::int64_t p = 0, line = 0; p < count; ++p) {
      for (; line < (p + 1) * step; line += kLineBytes) _mm_prefetch(ahead + line, _MM_HINT_T1);
      for (std::int64_t i = 0; i < head_size; i += kFeatures)
        _mm512_storeu_si512(memory + p * width + i, (__m512i)load_features(kept + p * step, head_size, i));
    }
    return {memory, width};
  } else {
    return {kept, runs.head_size};
  }
}

// ── Unpacked keys and values ──

/// scores[q, p] = q · k for up to 16 keys; scores after `count` are meaningless. As many bytes as these keys
/// have are prefetched from `ahead`. A key is read once for all rows.
template <int kRows>
STAIRCASE_TARGET void multiply_any(const std::uint16_t* queries, const std::uint16_t* keys,
                                   std::int64_t count, std::int64_t head_size, const std::uint16_t* ahead,
                                   std::int64_t score_stride, float* scores) {
  const std::int64_t width = round_up(head_size, kFeatures);
  __m512 chains[kRows][kLanes];
  for (int p = 0; p < kLanes; ++p) {
    // Past the last key, the last one is used again.
    const std::uint16_t* const key = keys + std::min<std::int64_t>(p, count - 1) * head_size;
    __m512 chain[kRows];
    for (auto& c : chain) c = _mm512_setzero_ps();
    for (std::int64_t i = 0; i < head_size; i += kFeatures) {
      _mm_prefetch(ahead + p * head_size + i, _MM_HINT_T1);
      const auto part = (__m512bh)load_features(key, head_size, i);
#pragma GCC unroll 8
      for (int q = 0; q < kRows; ++q) {
        const auto query = (__m512bh)_mm512_loadu_si512(queries + q * width + i);
        chain[q] = _mm512_dpbf16_ps(chain[q], query, part);
      }
    }
#pragma GCC unroll 8
    for (int q = 0; q < kRows; ++q) chains[q][p] = chain[q];
  }
  for (int q = 0; q < kRows; ++q) _mm512_storeu_ps(scores + q * score_stride, sums_of_lanes(chains[q]));
}

/// multiply_any for 16 keys of a size that the compiler knows. One query and all its chains stay in
/// registers. Each query reads all keys, which the first query has brought into the first-level cache.
template <int kRows, int kHeadSize>
STAIRCASE_TARGET void multiply_sixteen(const std::uint16_t* queries, const std::uint16_t* keys,
                                       const std::uint16_t* ahead, std::int64_t score_stride, float* scores) {
  constexpr int kParts = kHeadSize / kFeatures;
#pragma GCC unroll 1
  for (int q = 0; q < kRows; ++q) {
    __m512bh query[kParts];
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) {
      query[i] = (__m512bh)_mm512_loadu_si512(queries + q * kHeadSize + i * kFeatures);
    }
    __m512 chains[kLanes];
#pragma GCC unroll 16
    for (int p = 0; p < kLanes; ++p) {
      chains[p] = _mm512_setzero_ps();
#pragma GCC unroll 4
      for (int i = 0; i < kParts; ++i) {
        const std::int64_t place = p * kHeadSize + i * kFeatures;
        if (q == 0) _mm_prefetch(ahead + place, _MM_HINT_T1);
        chains[p] = _mm512_dpbf16_ps(chains[p], query[i], (__m512bh)_mm512_loadu_si512(keys + place));
      }
    }
    _mm512_storeu_ps(scores + q * score_stride, sums_of_lanes(chains));
  }
}

/// Chooses multiply_sixteen or multiply_any. Published models have heads of 64 or 128 features.
template <int kRows>
STAIRCASE_TARGET void multiply_keys(const std::uint16_t* queries, const std::uint16_t* keys,
                                    std::int64_t count, std::int64_t head_size, const std::uint16_t* ahead,
                                    std::int64_t score_stride, float* scores) {
  if (head_size == 64 && count == kPositions) {
    multiply_sixteen<kRows, 64>(queries, keys, ahead, score_stride, scores);
  } else if (head_size == 128 && count == kPositions) {
    multiply_sixteen<kRows, 128>(queries, keys, ahead, score_stride, scores);
  } else {
    multiply_any<kRows>(queries, keys, count, head_size, ahead, score_stride, scores);
  }
}

/// add_values for 32 · kParts features from `first` on.
template <int kRows, int kParts>
STAIRCASE_TARGET void add_parts(const std::uint16_t* weights, std::int64_t weight_stride,
                                const std::uint16_t* values, std::int64_t count, std::int64_t head_size,
                                std::int64_t first, const std::uint16_t* ahead, float* sums) {
  const std::int64_t width = round_up(head_size, kFeatures);
  __m512 sum[kRows][2 * kParts];
#pragma GCC unroll 8
  for (int q = 0; q < kRows; ++q) {
#pragma GCC unroll 4
    for (int i = 0; i < 2 * kParts; ++i) sum[q][i] = _mm512_loadu_ps(sums + q * width + first + i * kLanes);
  }
  for (std::int64_t p = 0; p < count; p += kPair) {
    __m512bh first_half[kParts], last_half[kParts];
#pragma GCC unroll 2
    for (int i = 0; i < kParts; ++i) {
      const std::int64_t feature = first + i * kFeatures;
      const std::uint16_t* const value = values + p * head_size;
      _mm_prefetch(ahead + p * head_size + feature, _MM_HINT_T1);
      _mm_prefetch(ahead + (p + 1) * head_size + feature, _MM_HINT_T1);
      const Halves even = load_features(value, head_size, feature),
                   odd = p + 1 < count ? load_features(value + head_size, head_size, feature) : Halves{};
      first_half[i] = first_columns(even, odd);
      last_half[i] = last_columns(even, odd);
    }
#pragma GCC unroll 8
    for (int q = 0; q < kRows; ++q) {
      const __m512bh pair = broadcast_pair(weights + q * weight_stride + p);
#pragma GCC unroll 2
      for (int i = 0; i < kParts; ++i) {
        sum[q][2 * i] = _mm512_dpbf16_ps(sum[q][2 * i], pair, first_half[i]);
        sum[q][2 * i + 1] = _mm512_dpbf16_ps(sum[q][2 * i + 1], pair, last_half[i]);
      }
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < kRows; ++q) {
#pragma GCC unroll 4
    for (int i = 0; i < 2 * kParts; ++i) _mm512_storeu_ps(sums + q * width + first + i * kLanes, sum[q][i]);
  }
}

/// sums[q] += the sum of these features of the values, each times q's weight for it. In each group of 32
/// features, first_columns come first.
template <int kRows>
STAIRCASE_TARGET void add_values(const std::uint16_t* weights, std::int64_t weight_stride,
                                 const std::uint16_t* values, std::int64_t count, std::int64_t head_size,
                                 IndexRange features, const std::uint16_t* ahead, float* sums) {
  constexpr int kParts = kRows <= kTileQueries ? 2 : 1;  // as many as fit into registers with their sums
  std::int64_t first = features.first;
  for (; first + (kParts - 1) * kFeatures < features.last; first += kParts * kFeatures) {
    add_parts<kRows, kParts>(weights, weight_stride, values, count, head_size, first, ahead, sums);
  }
  if (first < features.last) {
    add_parts<kRows, 1>(weights, weight_stride, values, count, head_size, first, ahead, sums);
  }
}

// ── In panels ──

/// sums[q] = the chains kFirst .. kFirst + kCount - 1 of the scores of 16 keys, added as in sums_of_lanes. A
/// query needs a register for each level of the sum.
template <int kRows, int kFirst, int kCount>
STAIRCASE_TARGET inline void add_chains(const std::uint16_t* queries, std::int64_t width,
                                        const std::uint16_t* keys, __m512* sums) {
  if constexpr (kCount == 1) {
    for (int q = 0; q < kRows; ++q) sums[q] = _mm512_setzero_ps();
    for (std::int64_t i = kFirst * kPair; i < width; i += kFeatures) {
      const auto key = (__m512bh)_mm512_loadu_si512(keys + i * kPanel);
#pragma GCC unroll 6
      for (int q = 0; q < kRows; ++q) {
        sums[q] = _mm512_dpbf16_ps(sums[q], broadcast_pair(queries + q * width + i), key);
      }
    }
  } else {
    // Of four chains, add the ones two apart first.
    constexpr int kStep = kCount == 2 ? 2 : kCount == 4 ? 1 : kCount / 2;
    __m512 others[kRows];
    add_chains<kRows, kFirst, kCount / 2>(queries, width, keys, sums);
    add_chains<kRows, kFirst + kStep, kCount / 2>(queries, width, keys, others);
#pragma GCC unroll 6
    for (int q = 0; q < kRows; ++q) sums[q] = _mm512_add_ps(sums[q], others[q]);
  }
}

template <int kRows>
STAIRCASE_TARGET void multiply_packed_keys(const std::uint16_t* queries, const std::uint16_t* packed_keys,
                                           std::int64_t seen, std::int64_t width, std::int64_t score_stride,
                                           float* scores) {
  for (std::int64_t p = 0; p < seen; p += kPositions) {
    __m512 sums[kRows];
    add_chains<kRows, 0, kLanes>(queries, width,
                                 packed_keys + p / kPanel * width * kPanel + p % kPanel * kPair, sums);
#pragma GCC unroll 6
    for (int q = 0; q < kRows; ++q) _mm512_storeu_ps(scores + q * score_stride + p, sums[q]);
  }
}

/// Packs up to 16 keys into a panel. Pairs of features are 32-bit elements, and squares of 16 by 16 are
/// transposed.
template <typename T>
STAIRCASE_TARGET void pack_keys(const Runs<T>& runs, const T* keys, std::int64_t count,
                                std::uint16_t* panel) {
  for (std::int64_t i = 0; i < runs.head_size; i += kFeatures) {
    std::uint32_t square[kPositions][kLanes];
    for (std::int64_t p = 0; p < count; ++p) {
      _mm512_storeu_si512(square[p], (__m512i)load_features(keys + p * runs.step, runs.head_size, i));
    }
    for (std::int64_t pair = 0; pair < kLanes; ++pair) {
      std::uint16_t* const to = panel + (i + pair * kPair) * kPanel;
      for (std::int64_t p = 0; p < count; ++p) {
        std::memcpy(to + p * kPair, &square[p][pair], sizeof square[p][pair]);
      }
    }
  }
}

/// Packs up to 16 values into panels of panel_size elements. In each group of 32 features, first_columns come
/// first.
template <typename T>
STAIRCASE_TARGET void pack_values(const Runs<T>& runs, const T* values, std::int64_t count,
                                  std::int64_t panel_size, std::uint16_t* panels) {
  for (std::int64_t i = 0; i < runs.head_size; i += kFeatures) {
    std::uint16_t* const panel = panels + i / kPanel * panel_size + i % kPanel * kPair;
    for (std::int64_t p = 0; p < count; p += kPair) {
      const T* const value = values + p * runs.step;
      const Halves even = load_features(value, runs.head_size, i),
                   odd = p + 1 < count ? load_features(value + runs.step, runs.head_size, i) : Halves{};
      std::uint16_t* const to = panel + p * kPanel;
      _mm512_storeu_si512(to, (__m512i)first_columns(even, odd));
      _mm512_storeu_si512(to + kFeatures, (__m512i)last_columns(even, odd));
    }
  }
}

// ── Both ──

/// Rounds `count` values to bfloat16, followed by zeros up to `width`, a multiple of 16.
STAIRCASE_TARGET void round_row(const float* values, std::int64_t count, std::int64_t width,
                                std::uint16_t* rounded) {
  for (std::int64_t i = 0; i < width; i += kLanes) {
    const std::int64_t some = std::clamp<std::int64_t>(count - i, 0, kLanes);
    const __m512 part = _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << some) - 1), values + i);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(rounded + i), (__m256i)_mm512_cvtneps_pbh(part));
  }
}

/// 2^x for x <= 0 in the given lanes, and 0 in all others. Let x = n + f, where n is an integer and 0 ≤ f
/// < 1. The polynomial for 2^f was fitted for the least relative error, 2e-7, and is 1 for f = 0. VSCALEFPS
/// multiplies it by 2^n: it rounds x down itself. For x = -infinity, it returns 0.
STAIRCASE_TARGET inline __m512 power_of_two(__mmask16 lanes, __m512 x) {
  const __m512 f = _mm512_maskz_reduce_ps(lanes, x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 sum = _mm512_set1_ps(0.001867123996f);
#pragma GCC unroll 5
  for (const float factor : {0.009017031221f, 0.055799926413f, 0.240164440032f, 0.693151313590f, 1.0f}) {
    sum = _mm512_fmadd_ps(sum, f, _mm512_set1_ps(factor));
  }
  return _mm512_maskz_scalef_ps(lanes, sum, x);
}

/// Combines all lanes into one number. GCC 12 warns about an uninitialized vector in its own intrinsics for
/// this.
template <typename Combine>
STAIRCASE_TARGET inline float combine_lanes(__m512 vector, const Combine& combine) {
  alignas(64) float lanes[kLanes];
  _mm512_store_ps(lanes, vector);
#pragma GCC unroll 4
  for (int count = kLanes / 2; count > 0; count /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) lanes[i] = combine(lanes[i], lanes[i + count]);
  }
  return lanes[0];
}

/// store(i, weights of the positions i .. i + 15, of the 16 after them), for every 32 positions up to
/// `total`. A weight is exp(scale (scores[i] - the largest)) for first ≤ i < count, and 0 for all other i.
/// Returns 1 / the sum of the weights.
template <typename Store>
STAIRCASE_TARGET float softmax(const float* scores, float scale, std::int64_t first, std::int64_t count,
                               std::int64_t total, const Store& store) {
  const auto lanes_below = [](std::int64_t lane) {
    return ~(~0u << std::clamp<std::int64_t>(lane, 0, kLanes));
  };
  const auto seen_of = [=](std::int64_t i) {
    if (first <= i && i + kLanes <= count) return kAllLanes;  // most vectors
    return static_cast<__mmask16>(lanes_below(count - i) & ~lanes_below(first - i));
  };
  // Four vectors at a time, so that none waits for the one before it: a row has room for whole panels.
  constexpr int kTogether = 4;
  static_assert(kTogether * kLanes == kPanel);
  __m512 most[kTogether];
  for (__m512& m : most) m = _mm512_set1_ps(-HUGE_VALF);
  for (std::int64_t i = 0; i < count; i += kPanel) {
#pragma GCC unroll 4
    for (int v = 0; v < kTogether; ++v) {
      const std::int64_t place = i + v * kLanes;
      most[v] = _mm512_mask_max_ps(most[v], seen_of(place), most[v], _mm512_loadu_ps(scores + place));
    }
  }
  for (const __m512 m : most) most[0] = _mm512_mask_max_ps(most[0], kAllLanes, most[0], m);
  const __m512 largest =
      _mm512_set1_ps(combine_lanes(most[0], [](float a, float b) { return std::max(a, b); }));
  const __m512 factor = _mm512_set1_ps(scale * 1.44269504f);  // log2 e
  const auto weigh = [&](std::int64_t i) STAIRCASE_TARGET {
    return power_of_two(seen_of(i), (_mm512_loadu_ps(scores + i) - largest) * factor);
  };
  __m512 sum = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < total; i += kFeatures) {
    const __m512 low = weigh(i), high = weigh(i + kLanes);
    sum += low + high;
    store(i, low, high);
  }
  return 1.0f / combine_lanes(sum, std::plus());
}

/// Rounds 32 values to bfloat16.
STAIRCASE_TARGET inline void store_rounded(__m512 low, __m512 high, std::uint16_t* rounded) {
  _mm512_storeu_si512(rounded, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

/// out[i] = sums[i] · factor in the order of the features; first_columns come first in each group of 32 sums.
STAIRCASE_TARGET void store_features(const float* sums, std::int64_t head_size, float factor, float* out) {
  for (std::int64_t i = 0; i < head_size; i += kFeatures) {
    const __m512 first = _mm512_loadu_ps(sums + i) * factor,
                 last = _mm512_loadu_ps(sums + i + kLanes) * factor;
    alignas(64) float ordered[kFeatures];
    _mm512_store_ps(ordered, __builtin_shufflevector(first, last, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20,
                                                     21, 22, 23));
    _mm512_store_ps(ordered + kLanes, __builtin_shufflevector(first, last, 8, 9, 10, 11, 24, 25, 26, 27, 12,
                                                              13, 14, 15, 28, 29, 30, 31));
    std::copy_n(ordered, std::min(kFeatures, head_size - i), out + i);
  }
}

/// How the memory for one tile of queries is divided.
struct Memory {
  Memory(const QueryTile& tile, std::int64_t head_size, float* scores_of_tile, float* scratch)
      : width(round_up(head_size, kFeatures)),
        stride(stride_of(tile.seen())),
        scores(scores_of_tile),
        weights(reinterpret_cast<std::uint16_t*>(scores)),
        sums(scratch),
        queries(reinterpret_cast<std::uint16_t*>(sums + most_rows() * width)) {}

  /// Another vector for each row: otherwise the same columns of 16 rows, as a matrix reads them, could lie in
  /// one set of the first-level cache.
  static std::int64_t stride_of(std::int64_t total) { return round_up(total, kPanel) + kLanes; }

  static std::int64_t most_rows() { return std::max(kMostQueries, packed_queries()); }

  std::int64_t width, stride, weight_stride = 2 * stride;
  float* scores;           // [rows, stride]
  std::uint16_t* weights;  // [rows, weight_stride]: a row takes the place of its scores
  float* sums;             // [rows, width]
  std::uint16_t* queries;  // [rows, width]
};

void round_queries(const QueryTile& tile, std::int64_t head_size, const Memory& memory) {
  for (std::int64_t q = 0; q < tile.rows; ++q) {
    round_row(tile.queries + q * head_size, head_size, memory.width, memory.queries + q * memory.width);
  }
}

/// Computes a query's weights from its scores. Returns 1 / their sum. `store` is as in softmax.
template <typename Store>
STAIRCASE_TARGET float weigh(const QueryTile& tile, std::int64_t head_size, std::int64_t row,
                             const Memory& memory, const Store& store) {
  return softmax(memory.scores + row * memory.stride, 1.0f / std::sqrt(static_cast<float>(head_size)),
                 tile.first_seen(row), tile.seen_by(row), tile.seen(), store);
}

/// weigh, rounded. If values have `scales`, these multiply their weights first.
STAIRCASE_TARGET float weigh_rounded(const QueryTile& tile, std::int64_t head_size, std::int64_t row,
                                     const Memory& memory, const float* scales = nullptr) {
  std::uint16_t* const weights = memory.weights + row * memory.weight_stride;
  if (scales == nullptr) {
    return weigh(tile, head_size, row, memory, [=](std::int64_t i, __m512 low, __m512 high) STAIRCASE_TARGET {
      store_rounded(low, high, weights + i);
    });
  }
  return weigh(tile, head_size, row, memory, [=](std::int64_t i, __m512 low, __m512 high) STAIRCASE_TARGET {
    store_rounded(low * _mm512_loadu_ps(scales + i), high * _mm512_loadu_ps(scales + i + kLanes),
                  weights + i);
  });
}

/// weigh, in place of the scores: products with scales are rounded later.
STAIRCASE_TARGET float weigh_exactly(const QueryTile& tile, std::int64_t head_size, std::int64_t row,
                                     const Memory& memory) {
  float* const weights = memory.scores + row * memory.stride;
  return weigh(tile, head_size, row, memory, [=](std::int64_t i, __m512 low, __m512 high) STAIRCASE_TARGET {
    _mm512_storeu_ps(weights + i, low);
    _mm512_storeu_ps(weights + i + kLanes, high);
  });
}

template <int... kLess>
constexpr auto multiply_keys_of(std::integer_sequence<int, kLess...>) {
  return std::array{multiply_keys<kLess + 1>...};
}
template <int... kLess>
constexpr auto add_values_of(std::integer_sequence<int, kLess...>) {
  return std::array{add_values<kLess + 1>...};
}
template <int... kLess>
constexpr auto multiply_packed_keys_of(std::integer_sequence<int, kLess...>) {
  return std::array{multiply_packed_keys<kLess + 1>...};
}

/// Element r - 1 is the function for r rows.
constexpr auto kMultiplyKeys = multiply_keys_of(std::make_integer_sequence<int, kMostQueries>());
constexpr auto kAddValues = add_values_of(std::make_integer_sequence<int, kMostQueries>());
constexpr auto kMultiplyPackedKeys = multiply_packed_keys_of(std::make_integer_sequence<int, kTileQueries>());

/// Calls work(first, count) for every `together` of these positions, a multiple of 16. The blocks of a paged
/// cache begin at multiples of 16.
template <typename Work>
void each_sixteen(IndexRange positions, const Work& work, std::int64_t together = kPositions) {
  for (std::int64_t first = positions.first; first < positions.last; first += together) {
    work(first, std::min(together, positions.last - first));
  }
}

/// Where to prefetch while position p is processed: some positions later. All keys come first, then all
/// values, then the next head's keys.
template <typename T>
class Ahead {
 public:
  Ahead(const Runs<T>& runs, const Runs<T>& next, std::int64_t total)
      : runs_(runs),
        next_(next),
        total_(total),
        distance_(round_up(kBytesFarAhead / (runs.step * std::int64_t{sizeof(T)}), kPositions)) {}

  const T* of_key(std::int64_t p) const { return address(p + distance_); }
  const T* of_value(std::int64_t p) const { return address(total_ + p + distance_); }

 private:
  const T* address(std::int64_t p) const {
    if (p < total_) return runs_.key(p);
    if (p < 2 * total_) return runs_.value(p - total_);
    return next_.key(std::min(p - 2 * total_, next_.length - 1));
  }

  const Runs<T>&runs_, &next_;
  std::int64_t total_, distance_;
};

// ── With matrix instructions ──

/// Sets the positions from `count` up to a multiple of 32 to 0 in each panel of values.
void pad_values(std::int64_t count, std::int64_t width, std::int64_t panel_size, std::uint16_t* panels) {
  for (std::int64_t i = 0; i < width; i += kPanel, panels += panel_size) {
    std::fill(panels + round_up(count, kPair) * kPanel, panels + round_up(count, kFeatures) * kPanel, 0);
  }
}

/// Computes the scores of a few queries as a transposed product: a tile holds 16 keys as the cache stores
/// them, so only the queries need packing.
template <typename T>
STAIRCASE_TARGET void multiply_keys_by_matrices(AmxBFloat16& matrices, const QueryTile& tile,
                                                const Runs<T>& runs, IndexRange positions,
                                                const Memory& memory, const Ahead<T>& ahead) {
  const std::int64_t rows = tile.rows, width = memory.width;
  // The memory of the sums is not in use yet. It holds the queries as [width / 2, rows, 2] and, if keys need
  // padding, 16 keys as [16, width].
  auto* const pairs = reinterpret_cast<std::uint16_t*>(memory.sums);
  std::uint16_t* const padded = pairs + rows * width;
  for (std::int64_t i = 0; i < width; ++i) {
    for (std::int64_t q = 0; q < rows; ++q) {
      pairs[(i / kPair * rows + q) * kPair + i % kPair] = memory.queries[q * width + i];
    }
  }
  each_sixteen(positions, [&](std::int64_t first, std::int64_t count) STAIRCASE_TARGET {
    const T *const kept = runs.key(first), *next = ahead.of_key(first);
    // The queries have been copied, so their memory is free.
    Rows keys = as_halves(runs, kept, count, next, memory.queries);
    if (count < kPositions || width > keys.size) {
      std::fill_n(padded, kPositions * width, 0);
      for (std::int64_t p = 0; p < count; ++p)
        std::copy_n(keys.values + p * keys.size, keys.size, padded + p * width);
      keys = {padded, width};
    }
    alignas(64) float products[kPositions * kMostQueries];
    matrices.multiply_narrow(keys.values, keys.size, pairs, rows, width, products);
    if constexpr (!kUnpacks<T>) {
      for (std::int64_t i = 0; i < kPositions * runs.head_size; i += kFeatures)
        _mm_prefetch(next + i, _MM_HINT_T1);
    }
    __m512 scales = _mm512_set1_ps(1.0f);
    if constexpr (kHasScales<T>) scales = gathered(kept + runs.head_size, runs.step, count);
    for (std::int64_t q = 0; q < rows; ++q) {
      const __m512 column = gathered(products + q, rows * std::int64_t{sizeof(float)});
      _mm512_storeu_ps(memory.scores + q * memory.stride + first, column * scales);
    }
  });
}

/// While it exists, this thread's vectors take subnormal numbers for 0, as TDPBF16PS does.
class WithoutSubnormals {
 public:
  WithoutSubnormals() { _mm_setcsr(before_ | 0x8040); }  // FTZ and DAZ
  ~WithoutSubnormals() { _mm_setcsr(before_); }
  WithoutSubnormals(const WithoutSubnormals&) = delete;
  WithoutSubnormals& operator=(const WithoutSubnormals&) = delete;

 private:
  unsigned before_ = _mm_getcsr();
};

/// 32 features as float32.
struct Features {
  __m512 low, high;
};

STAIRCASE_TARGET inline __m512 widened(__m256i halves) {
  return (__m512)((Int32s)_mm512_maskz_cvtepu16_epi32(kAllLanes, halves) << 16);
}

/// load_features in float32.
template <typename T>
STAIRCASE_TARGET inline Features load_widened(const T* head, std::int64_t head_size, std::int64_t i) {
  if constexpr (kHasScales<T>) {
    return {float_lanes(int_lanes(head + i)),
            i + kLanes < head_size ? float_lanes(int_lanes(head + i + kLanes)) : __m512{}};
  } else {
    const Halves all = load_features(head, head_size, i);
    return {widened((__m256i)__builtin_shufflevector(all, all, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,
                                                     14, 15)),
            widened((__m256i)__builtin_shufflevector(all, all, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27,
                                                     28, 29, 30, 31))};
  }
}

/// Positions that TDPBF16PS adds at a time: their even ones, then their odd ones, then both sums to the
/// result.
constexpr std::int64_t kDepth = 32;

/// weights [kRows, kDepth] = the rounded weights of `count` values from position `first` on.
template <int kRows, typename T>
STAIRCASE_TARGET void load_weights(const Runs<T>& runs, const Memory& memory, std::int64_t first,
                                   std::int64_t count, float (*weights)[kDepth]) {
  for (std::int64_t i = 0; i < count; i += kPositions) {
    __m512 scales{};
    if constexpr (kHasScales<T>) {
      scales = gathered(runs.value(first + i) + runs.head_size, runs.step, std::min(kPositions, count - i));
    }
    for (std::int64_t q = 0; q < kRows; ++q) {
      const std::int64_t place = first + i;
      const __m256i rounded = kHasScales<T>
                                  ? (__m256i)_mm512_cvtneps_pbh(
                                        _mm512_loadu_ps(memory.scores + q * memory.stride + place) * scales)
                                  : _mm256_loadu_si256(reinterpret_cast<const __m256i*>(
                                        memory.weights + q * memory.weight_stride + place));
      _mm512_store_ps(weights[q] + i, widened(rounded));
    }
  }
}

/// Adds 32 · kParts features from `i` on of `count` values from position `first` on.
template <int kRows, int kParts, typename T>
STAIRCASE_TARGET void add_weighted(const Runs<T>& runs, const Ahead<T>& ahead, std::int64_t first,
                                   std::int64_t count, const float (*weights)[kDepth], std::int64_t i,
                                   const Memory& memory) {
  Features even[kRows][kParts] = {}, odd[kRows][kParts] = {};
  for (std::int64_t begin = 0; begin < count; begin += kPositions) {
    const T *const kept = runs.value(first + begin), *const next = ahead.of_value(first + begin);
    const auto add = [&](std::int64_t p, Features(*sums)[kParts]) STAIRCASE_TARGET {
#pragma GCC unroll 2
      for (int part = 0; part < kParts; ++part) {
        const std::int64_t feature = i + part * kFeatures;
        _mm_prefetch(next + p * runs.step + feature, _MM_HINT_T1);
        const Features value = load_widened(kept + p * runs.step, runs.head_size, feature);
#pragma GCC unroll 8
        for (int q = 0; q < kRows; ++q) {
          const __m512 weight = _mm512_set1_ps(weights[q][begin + p]);
          sums[q][part].low = _mm512_fmadd_ps(value.low, weight, sums[q][part].low);
          sums[q][part].high = _mm512_fmadd_ps(value.high, weight, sums[q][part].high);
        }
      }
    };
    const std::int64_t last = std::min(kPositions, count - begin);
    for (std::int64_t p = 0; p < last; p += kPair) {
      add(p, even);
      if (p + 1 < last) add(p + 1, odd);
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < kRows; ++q) {
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      float* const sums = memory.sums + q * memory.width + i + part * kFeatures;
      _mm512_storeu_ps(sums, _mm512_loadu_ps(sums) + (even[q][part].low + odd[q][part].low));
      _mm512_storeu_ps(sums + kLanes,
                       _mm512_loadu_ps(sums + kLanes) + (even[q][part].high + odd[q][part].high));
    }
  }
}

/// sums = the weighted sums of these features of the values for a few queries: vectors in the order of
/// TDPBF16PS. To interleave values for its tiles takes longer than the vectors do.
template <int kRows, typename T>
STAIRCASE_TARGET void add_as_matrices(const Runs<T>& runs, std::int64_t total, IndexRange features,
                                      const Memory& memory, const Ahead<T>& ahead) {
  // Two parts if their sums fit into registers: a head of 64 in bfloat16 is read line by line.
  constexpr int kParts = kRows <= 3 && !kUnpacks<T> ? 2 : 1;
  for (int q = 0; q < kRows; ++q)
    std::fill(memory.sums + q * memory.width + features.first, memory.sums + (q + 1) * memory.width, 0.0f);
  for (std::int64_t first = 0; first < total; first += kDepth) {
    const std::int64_t count = std::min(kDepth, total - first);
    alignas(64) float weights[kRows][kDepth];
    load_weights<kRows>(runs, memory, first, count, weights);
    std::int64_t i = features.first;
    for (; i + (kParts - 1) * kFeatures < features.last; i += kParts * kFeatures)
      add_weighted<kRows, kParts>(runs, ahead, first, count, weights, i, memory);
    if (i < features.last) add_weighted<kRows, 1>(runs, ahead, first, count, weights, i, memory);
  }
}

template <typename T, int... kLess>
constexpr auto add_as_matrices_of(std::integer_sequence<int, kLess...>) {
  return std::array{add_as_matrices<kLess + 1, T>...};
}
template <typename T>
constexpr auto kAddAsMatrices = add_as_matrices_of<T>(std::make_integer_sequence<int, kMostQueries>());

/// `scales` [round_up(total, 64)] or nullptr: they multiply the scores.
STAIRCASE_TARGET void multiply_packed_by_matrices(AmxBFloat16& matrices, const QueryTile& tile,
                                                  const Memory& memory, const std::uint16_t* packed_keys,
                                                  const float* scales) {
  const std::int64_t seen = tile.seen(), width = memory.width;
  for (std::int64_t p = 0; p < seen; p += kPanel) {
    const std::int64_t columns = std::min(kPanel, round_up(seen - p, kHalfPanel));
    matrices.multiply(memory.queries, width, tile.rows, packed_keys + p * width, columns, width,
                      memory.scores + p, memory.stride);
    for (std::int64_t q = 0; q < tile.rows && scales != nullptr; ++q) {
      float* const scores = memory.scores + q * memory.stride + p;
      for (std::int64_t i = 0; i < columns; i += kLanes)
        _mm512_storeu_ps(scores + i, _mm512_loadu_ps(scores + i) * _mm512_loadu_ps(scales + p + i));
    }
  }
}

/// Calls run(runs) with the head's keys and values as Runs of their type.
template <typename Run>
auto with_runs(const HeadOfCache& head, const Run& run) {
  switch (head.keys_values.keys.dtype()) {
    case DType::kInt8:
      return run(Runs<std::int8_t>(head));
    case DType::kInt4:
      return run(Runs<Int4Byte>(head));
    default:
      return run(Runs<std::uint16_t>(head));
  }
}

bool has_scales(const HeadOfCache& head) {
  return head.keys_values.keys.dtype() == DType::kInt8;
}

/// Where the scales of packed keys and values are: after them.
float* scales_of_keys(std::uint16_t* packed_keys, std::int64_t width, std::int64_t total) {
  return reinterpret_cast<float*>(packed_keys + width * round_up(total, kPanel));
}
float* scales_of_values(std::uint16_t* packed_values, std::int64_t width, std::int64_t total) {
  return reinterpret_cast<float*>(packed_values + round_up(width, kPanel) * round_up(total, kPanel));
}

}  // namespace

bool multiplies(DType dtype) {
  if (dtype == DType::kBFloat16) return has_bfloat16_tile();
  return (dtype == DType::kInt8 || dtype == DType::kInt4) && has_amx_bfloat16(kFeatures);
}

std::int64_t packed_queries() {
  return has_amx_bfloat16(kFeatures) ? kMatrixRows : kTileQueries;
}

std::int64_t score_floats(std::int64_t rows, std::int64_t total) {
  return rows * Memory::stride_of(total);
}

std::int64_t scratch_floats(std::int64_t head_size) {
  const std::int64_t width = round_up(head_size, kFeatures);
  return Memory::most_rows() * width * 3 / 2;
}

void score_in_place(const QueryTile& tile, const HeadOfCache& head, IndexRange positions, float* scores,
                    float* scratch) {
  with_runs(head, [&]<typename T>(const Runs<T>& runs) {
    const Memory memory(tile, runs.head_size, scores, scratch);
    const Ahead ahead(runs, runs, tile.seen());
    round_queries(tile, runs.head_size, memory);
    if (has_amx_bfloat16(kFeatures)) {
      AmxBFloat16 matrices;
      multiply_keys_by_matrices(matrices, tile, runs, positions, memory, ahead);
      return;
    }
    if constexpr (!kUnpacks<T>) {
      const auto multiply = kMultiplyKeys[static_cast<std::size_t>(tile.rows - 1)];
      each_sixteen(positions, [&](std::int64_t first, std::int64_t count) {
        multiply(memory.queries, runs.key(first), count, runs.head_size, ahead.of_key(first), memory.stride,
                 memory.scores + first);
      });
    }
  });
}

float weigh_in_place(const QueryTile& tile, const HeadOfCache& head, std::int64_t row, float* scores) {
  const std::int64_t head_size = head.keys_values.head_size();
  const Memory memory(tile, head_size, scores, nullptr);
  return has_scales(head) ? weigh_exactly(tile, head_size, row, memory)
                          : weigh_rounded(tile, head_size, row, memory);
}

void add_in_place(const QueryTile& tile, const HeadOfCache& head, const HeadOfCache& next,
                  IndexRange features, const float* inverse_sums, float* scores, float* scratch, float* out) {
  with_runs(head, [&]<typename T>(const Runs<T>& runs) {
    const std::int64_t total = tile.seen();
    const Memory memory(tile, runs.head_size, scores, scratch);
    const Runs<T> next_runs(next);
    const Ahead ahead(runs, next_runs, total);
    if (has_amx_bfloat16(kFeatures)) {
      const WithoutSubnormals without;
      kAddAsMatrices<T>[static_cast<std::size_t>(tile.rows - 1)](runs, total, features, memory, ahead);
      for (std::int64_t q = 0; q < tile.rows; ++q) {
        for (std::int64_t i = features.first; i < features.last; ++i)
          out[q * runs.head_size + i] = memory.sums[q * memory.width + i] * inverse_sums[q];
      }
      return;
    }
    if constexpr (!kUnpacks<T>) {
      const auto add = kAddValues[static_cast<std::size_t>(tile.rows - 1)];
      std::fill_n(memory.sums, tile.rows * memory.width, 0.0f);
      // If the positions of a row are adjacent, the sums stay in registers for more positions at a time.
      const std::int64_t together = runs.length >= total ? 4 * kPositions : kPositions;
      each_sixteen(
          {0, total},
          [&](std::int64_t first, std::int64_t count) {
            add(memory.weights + first, memory.weight_stride, runs.value(first), count, runs.head_size,
                features, ahead.of_value(first), memory.sums);
          },
          together);
    }
    for (std::int64_t q = 0; q < tile.rows; ++q) {
      store_features(memory.sums + q * memory.width + features.first, features.last - features.first,
                     inverse_sums[q], out + q * runs.head_size + features.first);
    }
  });
}

void pack(const HeadOfCache& head, std::int64_t total, std::uint16_t* packed_keys,
          std::uint16_t* packed_values) {
  with_runs(head, [&]<typename T>(const Runs<T>& runs) {
    const std::int64_t width = round_up(runs.head_size, kFeatures),
                       panel_size = round_up(total, kFeatures) * kPanel;
    each_sixteen({0, total}, [&](std::int64_t first, std::int64_t count) {
      const T *const keys = runs.key(first), *const values = runs.value(first);
      pack_keys(runs, keys, count, packed_keys + first / kPanel * width * kPanel + first % kPanel * kPair);
      pack_values(runs, values, count, panel_size, packed_values + first * kPanel);
    });
    pad_values(total, width, panel_size, packed_values);
    if constexpr (kHasScales<T>) {
      float* const of_keys = scales_of_keys(packed_keys, width, total);
      float* const of_values = scales_of_values(packed_values, width, total);
      for (std::int64_t p = 0; p < round_up(total, kPanel); ++p) {
        of_keys[p] = p < total ? scale_after(runs.key(p), runs.head_size) : 0.0f;
        of_values[p] = p < total ? scale_after(runs.value(p), runs.head_size) : 0.0f;
      }
    }
  });
}

void attend_packed(const QueryTile& tile, const HeadOfCache& head, std::uint16_t* packed_keys,
                   std::uint16_t* packed_values, std::int64_t total, std::int64_t skipped, float* scores,
                   float* scratch, float* out) {
  const std::int64_t head_size = head.keys_values.head_size();
  const Memory memory(tile, head_size, scores, scratch);
  const std::int64_t seen = tile.seen(), panel_depth = round_up(total, kFeatures);
  const float *key_scales = nullptr, *value_scales = nullptr;
  if (has_scales(head)) {
    key_scales = scales_of_keys(packed_keys, memory.width, total) + skipped;
    value_scales = scales_of_values(packed_values, memory.width, total) + skipped;
  }
  packed_keys += skipped * memory.width;
  packed_values += skipped * kPanel;
  round_queries(tile, head_size, memory);
  if (has_amx_bfloat16(kFeatures)) {
    AmxBFloat16 matrices;
    float inverse_sums[kMatrixRows] = {};
    multiply_packed_by_matrices(matrices, tile, memory, packed_keys, key_scales);
    for (std::int64_t q = 0; q < tile.rows; ++q)
      inverse_sums[q] = weigh_rounded(tile, head_size, q, memory, value_scales);
    for (std::int64_t i = 0; i < memory.width; i += kPanel) {
      matrices.multiply(memory.weights, memory.weight_stride, tile.rows, packed_values + i * panel_depth,
                        std::min(kPanel, memory.width - i), round_up(seen, kFeatures), memory.sums + i,
                        memory.width);
    }
    for (std::int64_t q = 0; q < tile.rows; ++q) {
      store_features(memory.sums + q * memory.width, head_size, inverse_sums[q], out + q * head_size);
    }
    return;
  }
  kMultiplyPackedKeys[static_cast<std::size_t>(tile.rows - 1)](memory.queries, packed_keys, seen,
                                                               memory.width, memory.stride, memory.scores);
  float inverse_sums[kMostQueries] = {};
  for (std::int64_t q = 0; q < tile.rows; ++q) inverse_sums[q] = weigh_rounded(tile, head_size, q, memory);
  for (std::int64_t first = 0; first < head_size; first += kPanel) {
    alignas(64) float sums[kTileQueries * kPanel] = {};
    bfloat16_tile(static_cast<int>(tile.rows), kPanel)(memory.weights, memory.weight_stride,
                                                       packed_values + first * panel_depth,
                                                       round_up(seen, kPair), sums, nullptr);
    for (std::int64_t q = 0; q < tile.rows; ++q) {
      store_features(sums + q * kPanel, std::min(kPanel, head_size - first), inverse_sums[q],
                     out + q * head_size + first);
    }
  }
}

}  // namespace staircase::bfloat16

#else  // another architecture

namespace staircase::bfloat16 {

bool multiplies(DType) {
  return false;
}
std::int64_t packed_queries() {
  return kTileQueries;
}
std::int64_t score_floats(std::int64_t, std::int64_t) {
  return 0;
}
std::int64_t scratch_floats(std::int64_t) {
  return 0;
}
void score_in_place(const QueryTile&, const HeadOfCache&, IndexRange, float*, float*) {}
float weigh_in_place(const QueryTile&, const HeadOfCache&, std::int64_t, float*) {
  return 0.0f;
}
void add_in_place(const QueryTile&, const HeadOfCache&, const HeadOfCache&, IndexRange, const float*, float*,
                  float*, float*) {}
void pack(const HeadOfCache&, std::int64_t, std::uint16_t*, std::uint16_t*) {}
void attend_packed(const QueryTile&, const HeadOfCache&, std::uint16_t*, std::uint16_t*, std::int64_t,
                   std::int64_t, float*, float*, float*) {}

}  // namespace staircase::bfloat16

#endif
