// Attention for a few queries (decoding). One block per query and head would leave most of the GPU idle. So
// several blocks split the keys of a query (Dao et al. 2023, "Flash-Decoding"), and the last block to finish
// combines their sums. Only the GPU knows the lengths, so the host sizes the grid for a full cache; with
// fewer keys, some blocks have nothing to do. A block computes up to 8 heads that share a head of keys, so it
// reads each key and value once. The limit is memory bandwidth: 8 · n_kv_head head_size bytes per position,
// or 4 · n_kv_head head_size in 16 bits. Keys and values in 16, 8 or 4 bits are widened to float32 as they
// are loaded. In int8 each score is then multiplied by the scale of its key, and each weight by the scale of
// its value. In int4 keys and values are rotated, so queries are rotated too, and results are rotated back.
//
// The previous kernel computes the queries, but two things need not wait for it. Each block prefetches its
// share of the keys and values of earlier passes. Blocks without keys prefetch weights of the products that
// follow, so the memory stays busy while few blocks have work:
//
//     kernel before   ═══════════════════╗ ends
//     with keys           keys, values ──╫──▶│ attention
//     without             weights of the next two products ──▶ L2
//
// A block's share depends on positions that an earlier kernel may still be writing, so it is a guess. A wrong
// guess prefetches memory that no kernel needs, and changes no result.
#pragma once

#include "kernels/cuda/attention.cuh"

namespace staircase::cuda {

constexpr int kSplitThreads = 128;
constexpr int kSplitWarps = kSplitThreads / kWarp;
constexpr int kChunk = kSplitThreads;  // keys whose scores and places are in shared memory at a time
constexpr int kMaxSplits = kWarp;
constexpr int kKeysOfSplit = 64;  // the minimum per block, if several blocks share the keys
constexpr int kKeyLanes = 8;      // lanes that share a key: together they read 128 bytes of it at once
constexpr int kKeysAtOnce = 4;    // keys that a thread loads at the same time

/// How many heads of a group a block computes: all of them, but at most 8. Kernels exist for 1, 2, 4 and 8
/// heads. With any other number some heads are computed twice, which costs no bandwidth.
constexpr int heads_at_once(int group) {
  return group > 4 ? 8 : group > 2 ? 4 : group;
}

/// How many blocks a multiprocessor must have room for. Without this number, ptxas aims at more, and threads
/// spill registers.
template <int kHeads, typename Stored>
constexpr int kBlocks = kHeads > 2                           ? 1
                        : kHeads == 2 || sizeof(Stored) == 4 ? 4
                                                             : 6;

constexpr std::size_t split_shared_bytes(int heads, int head_size, int vector) {
  const int groups = kSplitThreads / (head_size / vector);
  return sizeof(float) * static_cast<std::size_t>(heads * (head_size + kChunk) + groups * head_size);
}

/// The data that blocks exchange if they share a token and a head.
struct Splits {
  float* sums;     ///< [n_tokens, n_head, gridDim.z, size]: values times weights, not yet divided
  float2* states;  ///< [n_tokens, n_head, gridDim.z]: the largest score and the sum of the weights
  unsigned* done;  ///< [n_tokens, gridDim.y]: finished blocks; 0 between two kernels
};

/// The weights of the products that follow, as memory to prefetch.
struct NextWeights {
  static constexpr int kPiece = 4096;  ///< bytes that a thread prefetches at a time

  const std::byte* first[2];
  std::int64_t bytes[2];  ///< multiples of 16

  /// Sets range `i` to the first `most` bytes of a tensor, or to nothing if its memory is not aligned.
  void set(int i, const Tensor& weights, std::int64_t most) {
    first[i] = weights.data<std::byte>();
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(first[i]) % 16 == 0;
    bytes[i] = is_aligned ? std::min(static_cast<std::int64_t>(weights.bytes()), most) / 16 * 16 : 0;
  }

  /// Prefetches the pieces `own`, `own + step` and so on, numbered across both ranges.
  __device__ void prefetch(std::int64_t own, std::int64_t step) const {
    for (int i = 0; i < 2; ++i) {
      const std::int64_t pieces = divide_up<std::int64_t>(bytes[i], kPiece);
      for (; own < pieces; own += step) {
        const std::int64_t begin = own * kPiece;
        prefetch_in_bulk(first[i] + begin,
                         static_cast<unsigned>(min(bytes[i] - begin, std::int64_t{kPiece})));
      }
      own -= pieces;
    }
  }
};

/// The heads and keys of a block. Its keys are one of `splits` equal parts of the keys that a token sees.
struct Share {
  int token, sequence;
  int kv_head, first_head, n_heads;
  int split, splits;  ///< a block with split ≥ splits has no keys
  int first, last;    ///< keys first .. last - 1

  /// Head `h` of the block. Past the last head, returns the last one again.
  __device__ int head(int h) const { return first_head + min(h, n_heads - 1); }
};

template <int kHeads, bool kGuesses = false, typename Stored>
__device__ __forceinline__ Share share_of_block(const Heads<Stored>& heads) {
  const int group = heads.group(), blocks_of_group = divide_up(group, kHeads);
  const int token = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y) / blocks_of_group;
  const int first_of_group = static_cast<int>(blockIdx.y) % blocks_of_group * kHeads;
  const int sequence = heads.sequences.template of_token<kGuesses>(token);
  const int split = static_cast<int>(blockIdx.z);
  int position = heads.sequences.template position<kGuesses>(sequence, token);
  if constexpr (kGuesses) position = max(0, min(position, heads.blocks.most * heads.blocks.size - 1));
  const int first_key = heads.first_key(position);
  const int seen = position + 1 - first_key;
  const int least = max(divide_up(seen, static_cast<int>(gridDim.z)), kKeysOfSplit);
  const int splits = divide_up(seen, least), share = divide_up(seen, splits);
  const int first = first_key + split * share;
  return {token, sequence, kv_head, kv_head * group + first_of_group, min(kHeads, group - first_of_group),
          split, splits,   first,   min(position + 1, first + share)};
}

/// Prefetches the keys and values of the share up to position `end`, 16 positions per thread at a time.
/// Impossible block numbers are skipped, because the previous kernel may still be writing the table.
template <typename Stored>
__device__ __forceinline__ void prefetch_keys(const Heads<Stored>& heads, const Share& share, int end) {
  constexpr int kPositions = 16;
  const int last = min(share.last, end);
  for (int begin = share.first / kPositions * kPositions + static_cast<int>(threadIdx.x) * kPositions;
       begin < last; begin += kSplitThreads * kPositions) {
    const int end_of_piece = min(begin + kPositions, last);
    for (int position = max(begin, share.first), count; position < end_of_piece; position += count) {
      const int in_block = position % heads.blocks.size;
      count = min(end_of_piece - position, heads.blocks.size - in_block);
      const std::int64_t place = heads.template key<true>(share.sequence, share.kv_head, position);
      if (place < 0) continue;
      const auto bytes = static_cast<unsigned>(count * heads.kept * static_cast<int>(sizeof(Stored)));
      prefetch_in_bulk(heads.keys + place, bytes);
      prefetch_in_bulk(heads.values + place, bytes);
    }
  }
}

/// Runs before the block waits for the previous kernel: prefetches the block's keys and values or, if it has
/// none, weights.
template <int kHeads, typename Stored>
__device__ __forceinline__ void prefetch_before_wait(const Heads<Stored>& heads, const NextWeights& next) {
  const Share share = share_of_block<kHeads, true>(heads);
  if (share.split < share.splits) {
    // Of all blocks with the same share of keys, only one prefetches it: the block of the sequence's first
    // token and the group's first heads.
    const int first_token = Sequences::number<true>(heads.sequences.offsets + share.sequence);
    if (share.token == first_token && share.first_head % heads.group() == 0)
      prefetch_keys(heads, share, Sequences::number<true>(heads.sequences.starts + share.sequence));
    return;
  }
  const std::int64_t idle = static_cast<int>(gridDim.z) - share.splits, rows = gridDim.x * gridDim.y;
  const std::int64_t row = blockIdx.x * gridDim.y + blockIdx.y, thread = threadIdx.x;
  next.prefetch(row + rows * (share.split - share.splits + idle * thread), rows * idle * kSplitThreads);
}

/// How the threads share the values of a chunk. A group of neighbouring threads covers one row, one piece per
/// thread, and the groups take the rows in turn.
template <int kVector>
struct ValueGroups {
  int count;  ///< the number of whole groups; the remaining threads are idle
  int own;    ///< the group of this thread
  int piece;  ///< the piece of this thread

  __device__ explicit ValueGroups(int size) {
    const int pieces = size / kVector, thread = static_cast<int>(threadIdx.x);
    count = kSplitThreads / pieces;
    own = thread / pieces;
    piece = thread % pieces;
  }
};

/// Stores the queries of the block's token and heads, times the scale, in shared memory. queries [kHeads,
/// size].
template <int kHeads, typename Stored>
__device__ __forceinline__ void load_queries(const Heads<Stored>& heads, const Share& share, float* queries) {
  for (int h = 0; h < kHeads; ++h) {
    const float* const query = heads.queries + heads.query(share.token, share.head(h));
    for (int i = static_cast<int>(threadIdx.x); i < heads.size; i += kSplitThreads) {
      queries[h * heads.size + i] = query[i] * heads.scale;
    }
  }
}

/// scores [kHeads, kChunk] = q · k for each query and the `count` keys at these places.
template <int kHeads, int kVector, typename Stored>
__device__ __forceinline__ void multiply_keys(const float* queries, const Heads<Stored>& heads,
                                              const std::int64_t* places, int count, float* scores) {
  constexpr int kGroups = kSplitThreads / kKeyLanes;
  const int thread = static_cast<int>(threadIdx.x), size = heads.size;
  for (int begin = 0; begin < count; begin += kKeysAtOnce * kGroups) {
    const int own = begin + thread / kKeyLanes;  // the thread's first key; every kGroups-th key follows
    const Stored* key[kKeysAtOnce];
    // Past the last key, load the last one again: a branch would prevent the loads from being issued
    // together.
    for (int j = 0; j < kKeysAtOnce; ++j) key[j] = heads.keys + places[min(own + j * kGroups, count - 1)];
    float score[kKeysAtOnce][kHeads] = {};
    for (int p = thread % kKeyLanes; p < size / kVector; p += kKeyLanes) {
      using KeyPiece = Piece<Stored, kVector>;
      KeyPiece pieces[kKeysAtOnce];
#pragma unroll
      for (int j = 0; j < kKeysAtOnce; ++j) pieces[j] = KeyPiece::load(key[j], size, p);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int j = 0; j < kKeysAtOnce; ++j) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            score[j][h] += queries[h * size + KeyPiece::feature(p, v)] * pieces[j][v];
          }
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kKeysAtOnce; ++j) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float sum = warp_sum<kKeyLanes>(score[j][h]) * heads.scale_of(key[j]);
        if (thread % kKeyLanes == 0) scores[h * kChunk + own + j * kGroups] = sum;
      }
    }
  }
}

/// The online softmax of a warp's heads. Warp w has the heads w, w + kSplitWarps and so on.
template <int kHeads>
struct WarpSoftmax {
  OnlineSoftmax own[divide_up(kHeads, kSplitWarps)];

  /// Calls use(head, its softmax) for each head of the warp.
  template <typename Use>
  __device__ __forceinline__ void for_each(const Use& use) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
    for (int i = 0; i < divide_up(kHeads, kSplitWarps); ++i) {
      if (warp + i * kSplitWarps < kHeads) use(warp + i * kSplitWarps, own[i]);
    }
  }
};

/// Turns the first `count` scores of a chunk into weights, each times the scale of its value, scales
/// [kChunk]. Sets shrink[h], in shared memory, to the factor by which the earlier sums of head h shrink.
template <int kHeads, bool kScaled>
__device__ __forceinline__ void exponentials(float* scores, int count, const float* scales,
                                             WarpSoftmax<kHeads>& softmax, float* shrink) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  softmax.for_each([&](int head, OnlineSoftmax& so_far) {
    float* const row = scores + head * kChunk;
    float largest = so_far.largest, sum = 0.0f;
    for (int k = lane; k < count; k += kWarp) largest = fmaxf(largest, row[k]);
    largest = warp_max(largest);
    for (int k = lane; k < count; k += kWarp) {
      const float weight = expf(row[k] - largest);
      sum += weight;
      row[k] = kScaled ? weight * scales[k] : weight;
    }
    const float shrinks_by = expf(so_far.largest - largest);
    so_far = {largest, so_far.sum * shrinks_by + warp_sum(sum)};
    if (lane == 0) shrink[head] = shrinks_by;
  });
}

/// result[h] = result[h] · shrink[h] + the sum of the `count` values at these places, each times head h's
/// weight for it, in the thread's columns. weights [kHeads, kChunk].
template <int kHeads, int kVector, typename Stored>
__device__ __forceinline__ void add_values(const float* weights, const Heads<Stored>& heads,
                                           const std::int64_t* places, int count,
                                           const ValueGroups<kVector>& groups, const float* shrink,
                                           float (&result)[kHeads][kVector]) {
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVector; ++v) result[h][v] *= shrink[h];
  }
  if (groups.own >= groups.count) return;
#pragma unroll 4
  for (int k = groups.own; k < count; k += groups.count) {
    const auto value = Piece<Stored, kVector>::load(heads.values + places[k], heads.size, groups.piece);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float weight = weights[h * kChunk + k];
#pragma unroll
      for (int v = 0; v < kVector; ++v) result[h][v] += weight * value[v];
    }
  }
}

/// Stores the sums of each group of threads in shared memory: group_sums [groups, size]. Stored one by one, 8
/// columns per thread would hit the same four banks 8 times. Stored 16 bytes at a time, they take only 2
/// turns.
template <typename Stored, int kVector>
__device__ __forceinline__ void share_groups(const float (&result)[kVector],
                                             const ValueGroups<kVector>& groups, int size,
                                             float* group_sums) {
  if (groups.own >= groups.count) return;
  constexpr int kAtOnce = kVector < 4 ? kVector : 4;
  float* const to = group_sums + groups.own * size;
  for (int v = 0; v < kVector; v += kAtOnce) {
    Vector<float, kAtOnce> piece;
    for (int i = 0; i < kAtOnce; ++i) piece.values[i] = result[v + i];
    *reinterpret_cast<Vector<float, kAtOnce>*>(to + Piece<Stored, kVector>::feature(groups.piece, v)) = piece;
  }
}

/// Calls put(i, feature i of the sums of all groups).
template <typename Put>
__device__ __forceinline__ void add_groups(const float* group_sums, int groups, int size, const Put& put) {
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kSplitThreads) {
    float total = 0.0f;
    for (int g = 0; g < groups; ++g) total += group_sums[g * size + i];
    put(i, total);
  }
}

/// Returns true in the last of `count` blocks to arrive. That block then sees the writes of all blocks (CUDA
/// Programming Guide, section "Memory Fence Functions"). Every thread of the block must call this. `done` is
/// 0 before and after.
__device__ __forceinline__ bool is_last(unsigned count, unsigned* done) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicInc(done, count - 1) == count - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}

/// Adds up the parts, each scaled down to the largest score of all parts, and calls put(i, feature i of the
/// result). Each lane holds the state of one part, so every warp holds the states of all parts.
template <typename Put>
__device__ __forceinline__ void combine(const float* sums, const float2* states, int splits, int size,
                                        const Put& put) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float2 state = lane < splits ? states[lane] : make_float2(-INFINITY, 0.0f);
  const float shrinks_by = expf(state.x - warp_max(state.x));
  const float sum = warp_sum(shrinks_by * state.y);
  // Every lane runs every iteration, because all lanes of a warp must take part in an exchange.
  for (int first = 0; first < size; first += kSplitThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    float total = 0.0f;
#pragma unroll 8
    for (int s = 0; s < splits; ++s) {
      total += __shfl_sync(kAllLanes, shrinks_by, s) * (i < size ? sums[s * size + i] : 0.0f);
    }
    if (i < size) put(i, total / sum);
  }
}

/// Block (token, up to kHeads heads of a group, split). head size / kVector ≤ kSplitThreads.
template <int kHeads, int kVector, typename Stored>
__global__ __launch_bounds__(kSplitThreads, kBlocks<kHeads, Stored>) void attend_split(Heads<Stored> heads,
                                                                                       Splits parts,
                                                                                       NextWeights next) {
  let_next_begin();
  if constexpr (kBeginsEarly) {
    const bool is_aligned = heads.kept * static_cast<int>(sizeof(Stored)) % 16 == 0;
    if (is_aligned) prefetch_before_wait<kHeads>(heads, next);
  }
  wait_for_previous();
  const int size = heads.size;
  const Share share = share_of_block<kHeads>(heads);
  if (share.split >= share.splits) return;
  float* const queries = reinterpret_cast<float*>(dynamic_shared_memory);  // [kHeads, size]
  float* const scores = queries + kHeads * size;                           // [kHeads, kChunk], then weights
  float* const group_sums = scores + kHeads * kChunk;                      // [groups, size]
  __shared__ float shrink[kHeads];
  __shared__ float2 states[kHeads];
  // The places of a chunk's keys and values. Two chunks take turns: one is written while some threads still
  // read the other.
  __shared__ std::int64_t places_of_two[2][kChunk];
  __shared__ float scales[kHasScale<Stored> ? kChunk : 1];  // of values
  load_queries<kHeads>(heads, share, queries);
  [[maybe_unused]] const auto rotate_queries = [&](int count) {
    rotate_heads(queries, count, size, size, static_cast<int>(threadIdx.x), kSplitThreads,
                 [] { __syncthreads(); });
  };
  if constexpr (kIsRotated<Stored>) rotate_queries(kHeads);

  const ValueGroups<kVector> groups(size);
  WarpSoftmax<kHeads> softmax;
  float result[kHeads][kVector] = {};
  for (int first = share.first, turn = 0; first < share.last; first += kChunk, turn ^= 1) {
    const int count = min(kChunk, share.last - first), thread = static_cast<int>(threadIdx.x);
    // Each thread finds the place of one key. Found where it is needed, as many times as threads read that
    // key, a place in a cache of blocks would take most of the instructions.
    std::int64_t* const places = places_of_two[turn];
    places[thread] = heads.key(share.sequence, share.kv_head, first + min(thread, count - 1));
    const float scale = heads.scale_of(heads.values + places[thread]);
    __syncthreads();  // the queries are loaded; no thread reads the last chunk's weights any more
    multiply_keys<kHeads, kVector>(queries, heads, places, count, scores);
    if constexpr (kHasScale<Stored>) scales[thread] = scale;
    __syncthreads();
    exponentials<kHeads, kHasScale<Stored>>(scores, count, scales, softmax, shrink);
    __syncthreads();
    add_values(scores, heads, places, count, groups, shrink, result);
  }
  softmax.for_each([&](int head, const OnlineSoftmax& all) {
    if (threadIdx.x % kWarp == 0) states[head] = make_float2(all.largest, all.sum);
  });

  // The first row of `parts` for a head, and the function that stores its result. A result that is still to
  // be rotated goes to the place of the queries, which no thread reads any more.
  const auto row = [&](int h) {
    return (static_cast<std::int64_t>(share.token) * heads.n_head + share.head(h)) * gridDim.z;
  };
  const auto put = [&](int h, int i, float value) {
    if constexpr (kIsRotated<Stored>) {
      queries[h * size + i] = value;
    } else {
      heads.store(share.token, share.head(h), i, value);
    }
  };
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (h >= share.n_heads) break;
    __syncthreads();  // the states are stored; no thread reads the last head's sums any more
    share_groups<Stored>(result[h], groups, size, group_sums);
    __syncthreads();
    if (share.splits == 1) {
      add_groups(group_sums, groups.count, size, [&](int i, float total) { put(h, i, total / states[h].y); });
    } else {
      float* const sums = parts.sums + (row(h) + share.split) * size;
      add_groups(group_sums, groups.count, size, [&](int i, float total) { sums[i] = total; });
      if (threadIdx.x == 0) parts.states[row(h) + share.split] = states[h];
    }
  }
  if (share.splits > 1) {
    if (!is_last(static_cast<unsigned>(share.splits), parts.done + blockIdx.x * gridDim.y + blockIdx.y))
      return;
    for (int h = 0; h < share.n_heads; ++h) {
      combine(parts.sums + row(h) * size, parts.states + row(h), share.splits, size,
              [&](int i, float value) { put(h, i, value); });
    }
  }
  if constexpr (kIsRotated<Stored>) {
    rotate_queries(share.n_heads);
    for (int i = static_cast<int>(threadIdx.x); i < share.n_heads * size; i += kSplitThreads) {
      heads.store(share.token, share.head(i / size), i % size, queries[i]);
    }
  }
}

}  // namespace staircase::cuda
