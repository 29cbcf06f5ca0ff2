// Attention of a few queries (decoding): one block a query and head would leave most of the GPU idle, so the
// keys of a query are split among several blocks (Dao et al. 2023, "Flash-Decoding"), and the last of them to
// be done combines their sums. The limit is the bandwidth at which keys and values are read: 8 · n_embd bytes
// a position, or 4 in 16 bits, which are widened to float32 where they are loaded.
#pragma once

#include "kernels/cuda/attention.cuh"

namespace staircase::cuda {

constexpr int kSplitThreads = 128;
constexpr int kChunk = kSplitThreads;  // keys whose scores are in shared memory at a time
constexpr int kMaxSplits = 32;
constexpr int kKeyLanes = 8;    // lanes that share a key: together they read 128 bytes of it at once
constexpr int kKeysAtOnce = 4;  // keys of a thread that are on their way together

constexpr std::size_t split_shared_bytes(int head_size, int vector) {
  const int groups = kSplitThreads / (head_size / vector);
  return sizeof(float) * static_cast<std::size_t>(head_size + kChunk + groups * head_size);
}

/// What the blocks that share a token and a head tell each other.
struct Splits {
  float* sums;     ///< [n_tokens, n_head, splits, size], of values times weights, undivided
  float2* states;  ///< [n_tokens, n_head, splits]: the largest score and the sum of the weights
  unsigned* done;  ///< [n_tokens, n_head]: how many of the blocks are done; 0 between two kernels
};

/// The keys that a block looks at: of those that a token sees, one of gridDim.z equal parts.
struct Share {
  int token, head, sequence;
  int split, splits;
  int first, last;  ///< from `first` to one before `last`; none where last ≤ first
};

template <typename Stored>
__device__ __forceinline__ Share share_of_block(const Heads<Stored>& heads) {
  const int token = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int split = static_cast<int>(blockIdx.z), splits = static_cast<int>(gridDim.z);
  const int sequence = heads.sequences.of_token(token);
  const int seen = heads.sequences.position(sequence, token) + 1, share = divide_up(seen, splits);
  const int first = split * share;
  return {token, head, sequence, split, splits, first, min(seen, first + share)};
}

/// How the threads share the values of a chunk: neighbours take kVector columns each of one row, and the
/// groups of such neighbours take turns with the rows.
template <int kVector>
struct ValueGroups {
  int count;   ///< of whole groups; the threads behind them have no part
  int own;     ///< the group of this thread
  int column;  ///< the first one of this thread

  __device__ explicit ValueGroups(int size) {
    const int columns = size / kVector, thread = static_cast<int>(threadIdx.x);
    count = kSplitThreads / columns;
    own = thread / columns;
    column = thread % columns * kVector;
  }
};

/// The query of the block's token and head, times the scale: query [size] in shared memory.
template <typename Stored>
__device__ __forceinline__ void load_query(const Heads<Stored>& heads, const Share& share, float* query) {
  for (int i = static_cast<int>(threadIdx.x); i < heads.size; i += kSplitThreads) {
    query[i] = heads.queries[heads.query(share.token, share.head) + i] * heads.scale;
  }
}

/// q · k for each of `count` keys of the share, from position `first` on: scores [kChunk].
template <int kVector, typename Stored>
__device__ __forceinline__ void multiply_keys(const float* query, const Heads<Stored>& heads,
                                              const Share& share, int first, int count, float* scores) {
  constexpr int kGroups = kSplitThreads / kKeyLanes;
  const int thread = static_cast<int>(threadIdx.x), size = heads.size;
  for (int begin = 0; begin < count; begin += kKeysAtOnce * kGroups) {
    const int own = begin + thread / kKeyLanes;  // and every kGroups-th behind it
    const Stored* key[kKeysAtOnce];
    // Behind the last key it is taken again: a branch would keep the loads from going out together.
    for (int j = 0; j < kKeysAtOnce; ++j) {
      const int position = first + min(own + j * kGroups, count - 1);
      key[j] = heads.keys + heads.key(share.sequence, share.head, position);
    }
    float score[kKeysAtOnce] = {};
    for (int i = thread % kKeyLanes * kVector; i < size; i += kKeyLanes * kVector) {
      Vector<Stored, kVector> pieces[kKeysAtOnce];
#pragma unroll
      for (int j = 0; j < kKeysAtOnce; ++j) pieces[j] = load_vector<kVector>(key[j] + i);
#pragma unroll
      for (int j = 0; j < kKeysAtOnce; ++j) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) score[j] += query[i + v] * widen(pieces[j].values[v]);
      }
    }
#pragma unroll
    for (int j = 0; j < kKeysAtOnce; ++j) {
      const float sum = warp_sum<kKeyLanes>(score[j]);
      if (thread % kKeyLanes == 0) scores[own + j * kGroups] = sum;
    }
  }
}

/// The scores of a chunk, of which `count` count, become weights. Returns what the sums so far shrink by.
__device__ __forceinline__ float exponentials(float* scores, int count, OnlineSoftmax& softmax) {
  const int thread = static_cast<int>(threadIdx.x);
  const float score = thread < count ? scores[thread] : -INFINITY;
  const float largest = fmaxf(softmax.largest, block_max<kSplitThreads>(score));
  const float weight = expf(score - largest), shrink = expf(softmax.largest - largest);
  softmax.largest = largest;
  softmax.sum = softmax.sum * shrink + block_sum<kSplitThreads>(weight);
  scores[thread] = weight;
  return shrink;
}

/// result = result · shrink + the thread's columns of `count` values of the share, each times its weight.
template <int kVector, typename Stored>
__device__ __forceinline__ void add_values(const float* weights, const Heads<Stored>& heads,
                                           const Share& share, int first, int count,
                                           const ValueGroups<kVector>& groups, float shrink,
                                           float (&result)[kVector]) {
  for (int v = 0; v < kVector; ++v) result[v] *= shrink;
  if (groups.own >= groups.count) return;
#pragma unroll 4
  for (int k = groups.own; k < count; k += groups.count) {
    const Vector<Stored, kVector> value =
        load_vector<kVector>(heads.values + heads.key(share.sequence, share.head, first + k) + groups.column);
#pragma unroll
    for (int v = 0; v < kVector; ++v) result[v] += weights[k] * widen(value.values[v]);
  }
}

/// What each group of threads has summed up goes to shared memory: group_sums [groups, size].
template <int kVector>
__device__ __forceinline__ void share_groups(const float (&result)[kVector],
                                             const ValueGroups<kVector>& groups, int size,
                                             float* group_sums) {
  if (groups.own >= groups.count) return;
  for (int v = 0; v < kVector; ++v) group_sums[groups.own * size + groups.column + v] = result[v];
}

/// put(i, feature i of the sums of all groups).
template <typename Put>
__device__ __forceinline__ void add_groups(const float* group_sums, int groups, int size, const Put& put) {
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kSplitThreads) {
    float total = 0.0f;
    for (int g = 0; g < groups; ++g) total += group_sums[g * size + i];
    put(i, total);
  }
}

/// True in the last of `count` blocks that come here, which then sees what all of them wrote (CUDA
/// Programming Guide, section "Memory Fence Functions"). Every thread of the block must call it. `done`
/// begins and ends with 0.
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

/// put(i, feature i of the result): adds up the parts, each scaled down to the largest score of all.
template <typename Put>
__device__ __forceinline__ void combine(const float* sums, const float2* states, int splits, int size,
                                        const Put& put) {
  float largest = -INFINITY, sum = 0.0f;
  for (int s = 0; s < splits; ++s) largest = fmaxf(largest, states[s].x);
  for (int s = 0; s < splits; ++s) sum += expf(states[s].x - largest) * states[s].y;
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kSplitThreads) {
    float total = 0.0f;
    for (int s = 0; s < splits; ++s) total += expf(states[s].x - largest) * sums[s * size + i];
    put(i, total / sum);
  }
}

/// Block (token, head, split). head size / kVector ≤ kSplitThreads.
template <int kVector, typename Stored>
__global__ __launch_bounds__(kSplitThreads) void attend_split(Heads<Stored> heads, Splits parts) {
  take_turn();
  const int size = heads.size;
  const Share share = share_of_block(heads);
  float* const query = reinterpret_cast<float*>(dynamic_shared_memory);  // [size]
  float* const scores = query + size;                                    // [kChunk], then weights
  float* const group_sums = scores + kChunk;                             // [groups, size]
  load_query(heads, share, query);

  const ValueGroups<kVector> groups(size);
  OnlineSoftmax softmax;
  float result[kVector] = {};
  for (int first = share.first; first < share.last; first += kChunk) {
    const int count = min(kChunk, share.last - first);
    __syncthreads();  // the query is there, and nobody still reads the weights of the last chunk
    multiply_keys<kVector>(query, heads, share, first, count, scores);
    __syncthreads();
    const float shrink = exponentials(scores, count, softmax);
    __syncthreads();
    add_values(scores, heads, share, first, count, groups, shrink, result);
  }

  share_groups(result, groups, size, group_sums);
  __syncthreads();
  const auto store = [&](int i, float value) { heads.store(share.token, share.head, i, value); };
  if (share.splits == 1) {
    add_groups(group_sums, groups.count, size, [&](int i, float total) { store(i, total / softmax.sum); });
    return;
  }
  const std::int64_t row = static_cast<std::int64_t>(share.token) * heads.n_head + share.head;
  float* const sums = parts.sums + row * share.splits * size;
  float2* const states = parts.states + row * share.splits;
  add_groups(group_sums, groups.count, size,
             [&](int i, float total) { sums[share.split * size + i] = total; });
  if (threadIdx.x == 0) states[share.split] = make_float2(softmax.largest, softmax.sum);
  if (is_last(gridDim.z, parts.done + row)) combine(sums, states, share.splits, size, store);
}

}  // namespace staircase::cuda
