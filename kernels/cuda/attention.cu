// attention: out = softmax(q Kᵀ / sqrt(head_size)) V for each head, each query seeing its own position and
// those before.
//
// queries and out [n_tokens, n_embd], keys and values [n_rows, n_head, capacity, head_size]. For a sequence
// of n positions: 4 · n_embd operations for each pair of a query and a key that it sees.
//
// Both kernels use the online softmax (Milakov and Gimelshein 2018, section 3; for attention Dao et al.
// 2022): scores come some at a time, and when a larger one than before turns up, all that was summed so far
// is scaled down. So no row of scores is ever stored in memory.
//
// Many queries (prefill): a block takes 32 neighbouring queries of a head and walks over the keys in tiles of
// 32, which it brings to shared memory, so each key is read from memory once for 32 queries: limited by
// arithmetic, and here by the bandwidth of shared memory.
//
// A few queries (decoding): one block a query and head would leave most of the GPU idle, so the keys of a
// query are split among several blocks (Dao et al. 2023, "Flash-Decoding"), and the last of them to be done
// combines their sums. The limit is the bandwidth at which keys and values are read: 8 · n_embd bytes a
// position, or 4 in 16 bits.
//
// Keys and values in 16 bits are widened to float32 where they are loaded.
#include <algorithm>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/device_functions.cuh"

namespace staircase {
namespace cuda {

/// What both kernels read.
template <typename Stored>
struct Heads {
  Sequences sequences;
  const float* queries;  ///< [n_tokens, n_head · size]
  const Stored* keys;    ///< [n_rows, n_head, capacity, size]
  const Stored* values;
  int n_head, size;
  std::int64_t capacity;
  float scale;  ///< 1 / sqrt(size)

  __device__ std::int64_t query(int token, int head) const {
    return (static_cast<std::int64_t>(token) * n_head + head) * size;
  }
  __device__ std::int64_t key(int sequence, int head, int position) const {
    return ((static_cast<std::int64_t>(sequence) * n_head + head) * capacity + position) * size;
  }
};

// ── Many queries ──

constexpr int kTileThreads = 128;
constexpr int kTileQueries = 32, kTileKeys = 32;
constexpr int kLargestTiledHead = 128;

// A thread has 2 queries of the tile, the 8 threads that share them are neighbours in a warp, and each has 4
// of the 32 keys, then every eighth group of 4 columns of the values.
constexpr int kTeam = 8;
constexpr int kThreadQueries = kTileQueries * kTeam / kTileThreads, kThreadKeys = kTileKeys / kTeam;

/// Rows in shared memory begin 4 floats further apart than they are long, and so in different banks.
__host__ __device__ constexpr int tile_stride(int head_size) {
  return divide_up(head_size, 4) * 4 + 4;
}
constexpr int kWeightStride = kTileKeys + 4;

constexpr std::size_t tile_shared_bytes(int head_size) {
  return sizeof(float) * static_cast<std::size_t>((kTileQueries + kTileKeys) * tile_stride(head_size) +
                                                  kTileQueries * kWeightStride);
}

/// Brings rows of `width` elements, `stride` apart in memory, to shared memory, times `scale`; what lies
/// beyond becomes 0.
template <typename Stored>
__device__ __forceinline__ void load_tile(const Stored* from, std::int64_t stride, int rows, int width,
                                          float scale, float* tile) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int tile_width = tile_stride(width) - 4;
  for (int row = warp; row < kTileKeys; row += kTileThreads / kWarp) {
    for (int i = lane; i < tile_width; i += kWarp) {
      tile[row * tile_stride(width) + i] =
          row < rows && i < width ? widen(from[row * stride + i]) * scale : 0.0f;
    }
  }
}

__device__ __forceinline__ float dot(float4 a, float4 b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

__device__ __forceinline__ float4 load4(const float* from) {
  return *reinterpret_cast<const float4*>(from);
}

/// Block (tile, head): the tiles of all sequences, one sequence behind the other. kMaxHead ≥ head size, a
/// multiple of 32.
template <int kMaxHead, typename Stored>
__global__ __launch_bounds__(kTileThreads) void attend_tile(Heads<Stored> heads, float* out) {
  take_turn();
  static_assert(kTileQueries == kTileKeys, "load_tile serves both");
  const Sequences& sequences = heads.sequences;
  int tile = static_cast<int>(blockIdx.x), sequence = 0;
  for (; sequence < sequences.count; ++sequence) {
    const int tiles = divide_up(sequences.offsets[sequence + 1] - sequences.offsets[sequence], kTileQueries);
    if (tile < tiles) break;
    tile -= tiles;
  }
  if (sequence == sequences.count) return;  // the host launches as many as there can be
  const int head = static_cast<int>(blockIdx.y), size = heads.size, stride = tile_stride(size);
  const int first_token = sequences.offsets[sequence] + tile * kTileQueries;
  const int rows = min(kTileQueries, sequences.offsets[sequence + 1] - first_token);
  const int position = sequences.position(sequence, first_token), seen = position + rows;

  float* const queries = reinterpret_cast<float*>(dynamic_shared_memory);  // [kTileQueries, stride]
  float* const tile_rows = queries + kTileQueries * stride;  // [kTileKeys, stride], keys, then values
  float* const weights = tile_rows + kTileKeys * stride;     // [kTileQueries, kWeightStride]
  load_tile(heads.queries + heads.query(first_token, head), static_cast<std::int64_t>(heads.n_head) * size,
            rows, size, heads.scale, queries);

  constexpr int kPieces = kMaxHead / (4 * kTeam);
  const int member = static_cast<int>(threadIdx.x) % kTeam;
  const int first_row = static_cast<int>(threadIdx.x) / kTeam * kThreadQueries;
  float largest[kThreadQueries], sum[kThreadQueries];
  float4 result[kThreadQueries][kPieces];
  for (int q = 0; q < kThreadQueries; ++q) {
    largest[q] = -INFINITY;
    sum[q] = 0.0f;
    for (int p = 0; p < kPieces; ++p) result[q][p] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }

  for (int first_key = 0; first_key < seen; first_key += kTileKeys) {
    const std::int64_t place = heads.key(sequence, head, first_key);
    const int keys = min(kTileKeys, seen - first_key);
    __syncthreads();  // nobody still reads the values of the last tile
    load_tile(heads.keys + place, size, keys, size, 1.0f, tile_rows);
    __syncthreads();

    float scores[kThreadQueries][kThreadKeys] = {};
    for (int i = 0; i < size; i += 4) {
      float4 query[kThreadQueries];
#pragma unroll
      for (int q = 0; q < kThreadQueries; ++q) query[q] = load4(queries + (first_row + q) * stride + i);
#pragma unroll
      for (int k = 0; k < kThreadKeys; ++k) {
        const float4 key = load4(tile_rows + (member + k * kTeam) * stride + i);
#pragma unroll
        for (int q = 0; q < kThreadQueries; ++q) scores[q][k] += dot(query[q], key);
      }
    }

#pragma unroll
    for (int q = 0; q < kThreadQueries; ++q) {
      const int own_position = position + first_row + q;
      float tile_largest = -INFINITY;
#pragma unroll
      for (int k = 0; k < kThreadKeys; ++k) {
        if (first_key + member + k * kTeam > own_position) scores[q][k] = -INFINITY;
        tile_largest = fmaxf(tile_largest, scores[q][k]);
      }
      // Every query sees key 0, so from the first tile on this is a number.
      const float new_largest = fmaxf(largest[q], warp_max<kTeam>(tile_largest));
      const float shrink = expf(largest[q] - new_largest);
      largest[q] = new_largest;
      sum[q] *= shrink;
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        float4& r = result[q][p];
        r = make_float4(r.x * shrink, r.y * shrink, r.z * shrink, r.w * shrink);
      }
#pragma unroll
      for (int k = 0; k < kThreadKeys; ++k) {
        const float weight = expf(scores[q][k] - new_largest);
        sum[q] += weight;
        weights[(first_row + q) * kWeightStride + member + k * kTeam] = weight;
      }
    }

    __syncthreads();  // the weights are there, and nobody still reads the keys
    load_tile(heads.values + place, size, keys, size, 1.0f, tile_rows);
    __syncthreads();
    for (int k = 0; k < kTileKeys; ++k) {
      float weight[kThreadQueries];
#pragma unroll
      for (int q = 0; q < kThreadQueries; ++q) weight[q] = weights[(first_row + q) * kWeightStride + k];
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        const int column = (p * kTeam + member) * 4;
        if (column >= size) break;
        const float4 value = load4(tile_rows + k * stride + column);
#pragma unroll
        for (int q = 0; q < kThreadQueries; ++q) {
          float4& r = result[q][p];
          r.x += weight[q] * value.x;
          r.y += weight[q] * value.y;
          r.z += weight[q] * value.z;
          r.w += weight[q] * value.w;
        }
      }
    }
  }

#pragma unroll
  for (int q = 0; q < kThreadQueries; ++q) {
    const float inverse = 1.0f / warp_sum<kTeam>(sum[q]);
    if (first_row + q >= rows) continue;
    float* const to = out + heads.query(first_token + first_row + q, head);
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int column = (p * kTeam + member) * 4;
      const float4 r = result[q][p];
      if (column < size) to[column] = r.x * inverse;
      if (column + 1 < size) to[column + 1] = r.y * inverse;
      if (column + 2 < size) to[column + 2] = r.z * inverse;
      if (column + 3 < size) to[column + 3] = r.w * inverse;
    }
  }
}

// ── A few queries ──

constexpr int kSplitThreads = 128;
constexpr int kChunk = kSplitThreads;  // keys whose scores are in shared memory at a time
constexpr int kMaxSplits = 32;
constexpr int kKeyLanes = 8;  // lanes that share a key: together they read 128 bytes of it at once

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

/// Adds up the parts, each scaled down to the largest score of all.
__device__ __forceinline__ void combine(const float* sums, const float2* states, int splits, int size,
                                        float* out) {
  float largest = -INFINITY, sum = 0.0f;
  for (int s = 0; s < splits; ++s) largest = fmaxf(largest, states[s].x);
  for (int s = 0; s < splits; ++s) sum += expf(states[s].x - largest) * states[s].y;
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kSplitThreads) {
    float total = 0.0f;
    for (int s = 0; s < splits; ++s) total += expf(states[s].x - largest) * sums[s * size + i];
    out[i] = total / sum;
  }
}

/// Block (token, head, split): one of gridDim.z equal parts of the keys that the token sees. head size /
/// kVector ≤ kSplitThreads.
template <int kVector, typename Stored>
__global__ __launch_bounds__(kSplitThreads) void attend_split(Heads<Stored> heads, float* out, Splits parts) {
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
    for (int k = thread / kKeyLanes; k < kChunk; k += kSplitThreads / kKeyLanes) {
      float score = 0.0f;
      if (k < count) {
        const Stored* const key = keys + static_cast<std::int64_t>(chunk + k) * size;
        for (int i = thread % kKeyLanes * kVector; i < size; i += kKeyLanes * kVector) {
          const Vector<Stored, kVector> piece = load_vector<kVector>(key + i);
#pragma unroll
          for (int v = 0; v < kVector; ++v) score += query[i + v] * widen(piece.values[v]);
        }
      }
      score = warp_sum<kKeyLanes>(score);
      if (thread % kKeyLanes == 0) scores[k] = k < count ? score : -INFINITY;
    }
    __syncthreads();

    const float score = scores[thread];
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
  const auto add_groups = [&](float divisor, float* to) {
    for (int i = thread; i < size; i += kSplitThreads) {
      float total = 0.0f;
      for (int g = 0; g < groups; ++g) total += group_sums[g * size + i];
      to[i] = total / divisor;
    }
  };
  float* const out_row = out + heads.query(token, head);
  if (splits == 1) {
    add_groups(sum, out_row);
    return;
  }
  const std::int64_t row = static_cast<std::int64_t>(token) * heads.n_head + head;
  float* const sums = parts.sums + row * splits * size;
  float2* const states = parts.states + row * splits;
  add_groups(1.0f, sums + split * size);
  if (thread == 0) states[split] = make_float2(largest, sum);
  if (is_last(gridDim.z, parts.done + row)) combine(sums, states, splits, size, out_row);
}

/// From this mean number of new tokens in a sequence on, tiles pay: a good part of their rows is in use.
constexpr std::int64_t kManyQueries = 12;

}  // namespace cuda

/// keys and values [n_rows, n_head, capacity, head_size]: `shape`.
template <typename Stored>
void CudaDevice::attend(const Batch& batch, const float* queries, const Stored* keys, const Stored* values,
                        const std::vector<std::int64_t>& shape, float* out) {
  using namespace cuda;
  const std::int64_t n_tokens = batch.n_tokens(), n_head = shape[1], capacity = shape[2];
  const int size = static_cast<int>(shape[3]);
  const Heads<Stored> heads{
      Sequences(batch),         queries, keys,     values,
      static_cast<int>(n_head), size,    capacity, 1.0f / std::sqrt(static_cast<float>(size))};
  const auto grid_heads = static_cast<unsigned>(n_head);

  // The lengths are known on the GPU only, so the choice is by what the host knows.
  if (n_tokens >= kManyQueries * batch.n_sequences() && size <= kLargestTiledHead) {
    const dim3 grid(blocks(n_tokens / kTileQueries + batch.n_sequences()), grid_heads);
    launch("attention was started", stream(), grid, kTileThreads, tile_shared_bytes(size),
           size <= 64 ? attend_tile<64, Stored> : attend_tile<kLargestTiledHead, Stored>, heads, out);
    return;
  }

  constexpr int kVector = 16 / sizeof(Stored);  // 16 bytes
  const int vector = size % kVector == 0 ? kVector : 1;
  if (size / vector > kSplitThreads) {
    throw std::runtime_error(
        "attention on the GPU takes heads of up to " + std::to_string(kVector * kSplitThreads) +
        " features where their number is a multiple of " + std::to_string(kVector) + ", else of up to " +
        std::to_string(kSplitThreads) + ", not of " + std::to_string(size));
  }
  // Enough blocks for every multiprocessor to have two, as long as each still has some 64 keys when the cache
  // is full.
  const std::int64_t rows = std::max<std::int64_t>(1, n_tokens * n_head);
  const std::int64_t splits = std::clamp<std::int64_t>(
      std::min(divide_up<std::int64_t>(2 * multiprocessors_, rows), capacity / 64), 1, kMaxSplits);
  Splits parts{};
  if (splits > 1) {
    parts.sums = scratch(rows * splits * (size + 2) + 1);
    // After an even number of floats, so that pairs of them are aligned.
    parts.states =
        reinterpret_cast<float2*>(parts.sums + divide_up<std::int64_t>(rows * splits * size, 2) * 2);
    parts.done = zeros(rows);
  }
  launch("attention was started", stream(), dim3(blocks(n_tokens), grid_heads, blocks(splits)), kSplitThreads,
         split_shared_bytes(size, vector),
         vector == kVector ? attend_split<kVector, Stored> : attend_split<1, Stored>, heads, out, parts);
}

void CudaDevice::attention(const Batch& batch, const Tensor& queries, const KeysValues& keys_values,
                           int n_head, Tensor& out) {
  if (listed(Operation::kAttention, batch, queries, keys_values, n_head, out)) return;
  cuda::with_type(keys_values.keys.dtype(), keys_values.keys.data<void>(), [&](auto* keys) {
    attend(batch, queries.data<float>(), keys, static_cast<decltype(keys)>(keys_values.values.data<void>()),
           keys_values.keys.shape(), out.data<float>());
  });
}

}  // namespace staircase
