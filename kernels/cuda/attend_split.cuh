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

/// Block (token, head, split): one of gridDim.z equal parts of the keys that the token sees. head size /
/// kVector ≤ kSplitThreads.
template <int kVector, typename Stored>
__global__ __launch_bounds__(kSplitThreads) void attend_split(Heads<Stored> heads, Splits parts) {
  take_turn();
  const int token = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int split = static_cast<int>(blockIdx.z), splits = static_cast<int>(gridDim.z);
  const int thread = static_cast<int>(threadIdx.x), size = heads.size;
  const int sequence = heads.sequences.of_token(token);
  const int length = heads.sequences.position(sequence, token) + 1, share = divide_up(length, splits);
  const int first = split * share, last = min(length, first + share);
  const Stored* const keys = heads.keys + heads.key(sequence, head, 0);
  const Stored* const values = heads.values + heads.key(sequence, head, 0);

  float* const query = reinterpret_cast<float*>(dynamic_shared_memory);  // [size]
  float* const scores = query + size;                                    // [kChunk]
  float* const group_sums = scores + kChunk;                             // [groups, size]
  for (int i = thread; i < size; i += kSplitThreads) {
    query[i] = heads.queries[heads.query(token, head) + i] * heads.scale;
  }

  // For the values, `columns` neighbouring threads share a row, and the groups of them share the keys.
  const int columns = size / kVector, groups = kSplitThreads / columns;
  const int column = thread % columns * kVector, group = thread / columns;
  float largest = -INFINITY, sum = 0.0f;
  float result[kVector] = {};

  for (int chunk = first; chunk < last; chunk += kChunk) {
    const int count = min(kChunk, last - chunk);
    __syncthreads();  // the query is there, and nobody still reads the weights of the last chunk
    constexpr int kGroups = kSplitThreads / kKeyLanes;
    for (int begin = 0; begin < count; begin += kKeysAtOnce * kGroups) {
      const int own = begin + thread / kKeyLanes;  // and every kGroups-th behind it
      const Stored* key[kKeysAtOnce];
      // Behind the last key it is taken again: a branch would keep the loads from going out together.
      for (int j = 0; j < kKeysAtOnce; ++j) {
        key[j] = keys + static_cast<std::int64_t>(chunk + min(own + j * kGroups, count - 1)) * size;
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
    __syncthreads();

    const float score = thread < count ? scores[thread] : -INFINITY;
    const float new_largest = fmaxf(largest, block_max<kSplitThreads>(score));
    const float weight = expf(score - new_largest), shrink = expf(largest - new_largest);
    largest = new_largest;
    sum = sum * shrink + block_sum<kSplitThreads>(weight);
    scores[thread] = weight;
    __syncthreads();

    for (int v = 0; v < kVector; ++v) result[v] *= shrink;
    if (group < groups) {
#pragma unroll 4
      for (int k = group; k < count; k += groups) {
        const Vector<Stored, kVector> value =
            load_vector<kVector>(values + static_cast<std::int64_t>(chunk + k) * size + column);
#pragma unroll
        for (int v = 0; v < kVector; ++v) result[v] += scores[k] * widen(value.values[v]);
      }
    }
  }

  if (group < groups) {
    for (int v = 0; v < kVector; ++v) group_sums[group * size + column + v] = result[v];
  }
  __syncthreads();
  const auto add_groups = [&](const auto& put) {
    for (int i = thread; i < size; i += kSplitThreads) {
      float total = 0.0f;
      for (int g = 0; g < groups; ++g) total += group_sums[g * size + i];
      put(i, total);
    }
  };
  const auto store = [&](int i, float value) { heads.store(token, head, i, value); };
  if (splits == 1) {
    add_groups([&](int i, float total) { store(i, total / sum); });
    return;
  }
  const std::int64_t row = static_cast<std::int64_t>(token) * heads.n_head + head;
  float* const sums = parts.sums + row * splits * size;
  float2* const states = parts.states + row * splits;
  add_groups([&](int i, float total) { sums[split * size + i] = total; });
  if (thread == 0) states[split] = make_float2(largest, sum);
  if (is_last(gridDim.z, parts.done + row)) combine(sums, states, splits, size, store);
}

}  // namespace staircase::cuda
