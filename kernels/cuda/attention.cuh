// What the attention kernels share: their inputs and outputs, and the queries of a block.
#pragma once

#include "kernels/cuda/device_tensors.cuh"
#include "kernels/cuda/int4_cache.cuh"

namespace staircase::cuda {

/// Whether each key and each value has a scale, which is stored after its elements.
template <typename Stored>
constexpr bool kHasScale = std::is_same_v<Stored, std::int8_t>;

/// The scale of a head in an int8 cache. For other types it is 1.
template <typename Stored>
__device__ __forceinline__ float scale_of_head(const Stored* head, int size) {
  if constexpr (kHasScale<Stored>) {
    return *reinterpret_cast<const float*>(head + size);
  } else {
    return 1.0f;
  }
}

/// Returns feature i of a head, without the scale of an int8 cache.
template <typename Stored>
__device__ __forceinline__ float feature_of(const Stored* head, int /*size*/, int i) {
  return widen(head[i]);
}
__device__ __forceinline__ float feature_of(const Int4Byte* head, int size, int i) {
  const int place = i / (2 * kGroupLevels) * kGroupLevels + i % kGroupLevels, levels = head[place].levels;
  const LevelEnds ends = ends_of_groups(head, size)[place / (kGroupLevels / 2)];
  return ends.number(i / kGroupLevels % 2 == 0 ? levels & 15 : levels >> 4);
}

/// kCount neighbouring features of a head, which a thread loads at once.
template <typename Stored, int kCount>
struct Piece {
  Vector<Stored, kCount> values;

  __device__ __forceinline__ static Piece load(const Stored* head, int /*size*/, int number) {
    return {load_vector<kCount>(head + number * kCount)};
  }
  /// Returns the i-th feature of the piece.
  __device__ __forceinline__ float operator[](int i) const { return widen(values.values[i]); }
  /// Returns the index in the head of feature i of the piece with that number.
  __device__ __forceinline__ static int feature(int number, int i) { return number * kCount + i; }
};

/// A piece of an int4 head: the levels of four neighbours and of the four that share their bytes. All belong
/// to one group.
template <>
struct Piece<Int4Byte, 8> {
  static constexpr int kBytes = 4;

  Vector<Int4Byte, kBytes> levels;
  LevelEnds ends;

  __device__ __forceinline__ static Piece load(const Int4Byte* head, int size, int number) {
    return {load_vector<kBytes>(head + number * kBytes), ends_of_groups(head, size)[number / 2]};
  }
  __device__ __forceinline__ float operator[](int i) const {
    return ends.number(levels.values[i % kBytes].levels >> i / kBytes * 4 & 15);
  }
  __device__ __forceinline__ static int feature(int number, int i) {
    const int place = number * kBytes + i % kBytes;
    return place + (place / kGroupLevels + i / kBytes) * kGroupLevels;
  }
};

/// The features of a piece, for heads whose size is a multiple of it; other heads are read one feature at a
/// time. A piece has 16 bytes, or 4 in int8 and int4, whose heads are not always aligned to more.
template <typename Stored>
constexpr int kPieceFeatures = sizeof(Stored) > 1   ? 16 / sizeof(Stored)
                               : kIsRotated<Stored> ? 8
                                                    : 4;

template <typename Stored>
struct Heads {
  Sequences sequences;
  const float* queries;  ///< [n_tokens, n_head · size]
  const Stored* keys;    ///< [n_blocks, n_kv_head, block_size, kept]
  const Stored* values;
  int n_head, n_kv_head, size;
  int kept;  ///< elements from one position to the next: with scales, more than `size`
  Blocks blocks;
  int window;   ///< the maximum number of positions that a query sees
  float scale;  ///< 1 / sqrt(size)
  DType out_type;
  void* out;  ///< [n_tokens, n_head · size]

  /// The number of query heads per head of keys.
  __host__ __device__ int group() const { return n_head / n_kv_head; }
  __device__ std::int64_t query(int token, int head) const {
    return (static_cast<std::int64_t>(token) * n_head + head) * size;
  }
  /// The index of a key or value. Call it with kGuesses before the wait for the previous kernel; it is then
  /// below 0 if the block's number is impossible.
  template <bool kGuesses = false>
  __device__ std::int64_t key(int sequence, int kv_head, int position) const {
    return blocks.place<kGuesses>(sequence, kv_head, n_kv_head, position) * kept;
  }
  /// The factor by which the elements of a key or a value are multiplied.
  __device__ float scale_of(const Stored* head) const { return scale_of_head(head, size); }
  /// The first key that the query at `position` sees.
  __device__ int first_key(int position) const { return max(position - window + 1, 0); }
  /// Whether the query at `position` sees the key at position `key`.
  __device__ bool sees(int position, int key) const { return key <= position && key > position - window; }
  __device__ void store(int token, int head, int feature, float value) const {
    store_as(out_type, out, query(token, head) + feature, value);
  }
};

/// The online softmax of one query (Milakov and Gimelshein 2018, section 3). A new largest score shrinks the
/// sums so far by exp(largest before - largest now).
struct OnlineSoftmax {
  float largest = -INFINITY;  ///< the largest score so far
  float sum = 0.0f;           ///< the sum of the weights so far, each exp(score - largest)

  /// The score that is subtracted from all scores: the largest one so far. Before a window's first key no
  /// score exists, and any number will do.
  __device__ static float reference(float largest) { return largest == -INFINITY ? 0.0f : largest; }
};

/// Neighbouring queries of a sequence, for kernels in which a block computes several queries.
struct QueryTile {
  int sequence;
  int first_token, count;  ///< count is 0 in a block without work
  int position;            ///< the position of the first query

  /// The number of keys that the last query sees.
  __device__ int seen() const { return position + count; }
};

/// Returns this block's tile of up to `most` queries, out of the tiles of all sequences. The last tiles run
/// first, because they see the most keys and take longest.
__device__ __forceinline__ QueryTile query_tile(const Sequences& sequences, int most) {
  int tile = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  for (int s = 0; s < sequences.count; ++s) {
    const int first = sequences.offsets[s], last = sequences.offsets[s + 1];
    const int tiles = divide_up(last - first, most);
    if (tile < tiles) {
      const int token = first + tile * most;
      return {s, token, min(most, last - token), sequences.position(s, token)};
    }
    tile -= tiles;
  }
  return {};
}

/// An upper bound for the number of tiles of up to `most` queries. Only the GPU knows the lengths, so the
/// host cannot count them.
inline unsigned query_tiles(const Batch& batch, std::int64_t most) {
  return blocks(batch.n_tokens() / most + batch.n_sequences());
}

}  // namespace staircase::cuda
