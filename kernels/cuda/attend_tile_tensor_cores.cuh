// Attention for many queries (prefill) on tensor cores, with keys and values in 16 bits. It follows
// FlashAttention-2 (Dao 2023, section 3). A block computes 64 neighbouring queries of a head, 16 for each of
// its warps, and goes through the keys in tiles. While it multiplies one tile, the next is being copied to
// shared memory.
//
// A warp keeps all data of its queries in registers: the queries, the sums, and the scores of a tile, which
// become weights in place. Tensor cores multiply 16-bit operands, so queries and weights are rounded to the
// type of the keys. Scores, softmax and sums are in float32.
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/tensor_cores.cuh"

namespace staircase::cuda {

constexpr int kTensorCoreThreads = 128;
constexpr int kTensorCoreQueries = 16 * kTensorCoreThreads / kWarp;

/// The elements from one row of a tile to the next: 16 bytes more than a row, whose length is a multiple of
/// 32 bytes. ldmatrix reads the same 16 bytes of 8 neighbouring rows at once; with this stride they lie in
/// different banks.
__host__ __device__ constexpr int tensor_core_stride(int head_size) {
  return head_size + 8;
}

/// The bytes of two tiles of keys and two of values.
constexpr std::size_t tensor_core_shared_bytes(int tile_keys, int head_size) {
  return sizeof(std::uint16_t) * static_cast<std::size_t>(2 * 2 * tile_keys * tensor_core_stride(head_size));
}

// A lane has two of its warp's 16 queries, 8 rows apart: half 0 and half 1. It holds four elements of a
// product; the first two belong to half 0.

/// Where a lane's elements are in a piece of a matrix (see tensor_cores.cuh), and which row of which of four
/// matrices the lane passes to ldmatrix.
struct LanePlace {
  int group, pair, matrix, matrix_row;
};

__device__ __forceinline__ LanePlace lane_place() {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  return {lane / 4, lane % 4 * 2, lane / 8, lane % 8};
}

/// The first query of the warp in the tile, and the two queries of the lane.
__device__ __forceinline__ int first_query_of_warp() {
  return static_cast<int>(threadIdx.x) / kWarp * 16;
}
__device__ __forceinline__ int query_of_lane(int half) {
  return first_query_of_warp() + lane_place().group + 8 * half;
}

/// Two tiles of keys and two of values in shared memory, used in turn: [2, 2, kTileKeys, stride].
template <int kTileKeys, typename Stored>
struct KeyTiles {
  Stored* memory;
  int stride;

  __device__ Stored* keys(int number) const { return memory + number % 2 * 2 * kTileKeys * stride; }
  __device__ Stored* values(int number) const { return keys(number) + kTileKeys * stride; }
};

/// Starts copying the keys and values of tile `number` to shared memory. The first tile begins with the first
/// key that a query sees.
template <int kTileKeys, typename Stored>
__device__ __forceinline__ void begin_to_fetch(const Heads<Stored>& heads, const QueryTile& tile, int kv_head,
                                               int number, const KeyTiles<kTileKeys, Stored>& to) {
  const int first_key = heads.first_key(tile.position) + number * kTileKeys;
  const int count = min(kTileKeys, tile.seen() - first_key);
  const int pieces = heads.size / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kTileKeys * pieces; i += kTensorCoreThreads) {
    const int row = i / pieces, feature = i % pieces * 8;
    // Rows past the last key repeat that key: memory after it may hold NaN, and NaN times a weight of 0 is
    // NaN.
    const std::int64_t from = heads.key(tile.sequence, kv_head, first_key + min(row, count - 1)) + feature;
    cp_async_16(to.keys(number) + row * to.stride + feature, heads.keys + from);
    cp_async_16(to.values(number) + row * to.stride + feature, heads.values + from);
  }
  cp_async_commit_group();
}

/// Loads the warp's queries in pieces of 16 features. Features past the end become 0.
template <int kPieces, typename Stored>
__device__ __forceinline__ void load_queries(const Heads<Stored>& heads, const QueryTile& tile, int head,
                                             unsigned (&queries)[kPieces][4]) {
#pragma unroll
  for (int f = 0; f < kPieces; ++f) {
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int row = query_of_lane(part % 2), feature = f * 16 + part / 2 * 8 + lane_place().pair;
      Vector<float, 2> both{};
      if (row < tile.count && feature < heads.size) {
        both = load_vector<2>(heads.queries + heads.query(tile.first_token + row, head) + feature);
      }
      queries[f][part] = pack<Stored>(both.values[0], both.values[1]);
    }
  }
}

/// scores += q · k for the warp's queries and all keys of a tile, in pieces of 8 keys.
template <int kPieces, int kScores, typename Stored>
__device__ __forceinline__ void multiply_keys(const unsigned (&queries)[kPieces][4], const Stored* keys,
                                              int size, float (&scores)[kScores][4]) {
  const int stride = tensor_core_stride(size);
  const LanePlace lane = lane_place();
#pragma unroll
  for (int f = 0; f < kPieces; ++f) {
    if (f * 16 >= size) break;
#pragma unroll
    for (int k = 0; k < kScores / 2; ++k) {
      unsigned b[4];  // 16 keys: the first 8 features, then the other 8
      ldmatrix_x4<false>(
          b, keys + (k * 16 + lane.matrix / 2 * 8 + lane.matrix_row) * stride + f * 16 + lane.matrix % 2 * 8);
      mma_m16n8k16<Stored>(scores[2 * k], queries[f], b[0], b[1]);
      mma_m16n8k16<Stored>(scores[2 * k + 1], queries[f], b[2], b[3]);
    }
  }
}

/// Sets the scores of unseen keys to -infinity: keys after the query's own position or before its window.
/// `first_key` is the first key of the tile of keys, and `position` the position of the first query of the
/// tile of queries.
template <int kScores, typename Stored>
__device__ __forceinline__ void hide_unseen_keys(const Heads<Stored>& heads, int first_key, int position,
                                                 float (&scores)[kScores][4]) {
  const int first_query = position + first_query_of_warp();
  if (first_key + kScores * 8 - 1 <= first_query && first_key >= heads.first_key(first_query + 15)) return;
#pragma unroll
  for (int k = 0; k < kScores; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first_key + k * 8 + lane_place().pair + i % 2;
      if (!heads.sees(position + query_of_lane(i / 2), key)) scores[k][i] = -INFINITY;
    }
  }
}

/// Turns the scores into weights in place. Weights are powers of 2, so `scale` and the largest scores include
/// a factor log2(e). Sets shrink[half] to the factor by which the earlier sums shrink.
template <int kScores>
__device__ __forceinline__ void exponentials(float scale, float (&scores)[kScores][4],
                                             OnlineSoftmax (&softmax)[2], float (&shrink)[2]) {
  float tile_largest[2] = {-INFINITY, -INFINITY}, reference[2];
#pragma unroll
  for (int k = 0; k < kScores; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) tile_largest[i / 2] = fmaxf(tile_largest[i / 2], scores[k][i]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float largest = fmaxf(softmax[half].largest, scale * warp_max<4>(tile_largest[half]));
    reference[half] = OnlineSoftmax::reference(largest);
    shrink[half] = ex2_approx_ftz(softmax[half].largest - reference[half]);
    softmax[half].largest = largest;
    softmax[half].sum *= shrink[half];
  }
#pragma unroll
  for (int k = 0; k < kScores; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[k][i] = ex2_approx_ftz(scale * scores[k][i] - reference[i / 2]);
      softmax[i / 2].sum += scores[k][i];
    }
  }
}

/// Multiplies each result by the shrink of its query.
template <int kPieces>
__device__ __forceinline__ void shrink_results(const float (&shrink)[2], float (&result)[kPieces][4]) {
#pragma unroll
  for (int f = 0; f < kPieces; ++f) {
#pragma unroll
    for (int i = 0; i < 4; ++i) result[f][i] *= shrink[i / 2];
  }
}

/// result += the sum of a tile's values, each times its weight, in pieces of 8 features.
template <int kScores, int kPieces, typename Stored>
__device__ __forceinline__ void add_values(const float (&weights)[kScores][4], const Stored* values, int size,
                                           float (&result)[kPieces][4]) {
  const int stride = tensor_core_stride(size);
  const LanePlace lane = lane_place();
#pragma unroll
  for (int k = 0; k < kScores / 2; ++k) {
    const auto& low = weights[2 * k];
    const auto& high = weights[2 * k + 1];
    const unsigned a[4] = {pack<Stored>(low[0], low[1]), pack<Stored>(low[2], low[3]),
                           pack<Stored>(high[0], high[1]), pack<Stored>(high[2], high[3])};
#pragma unroll
    for (int f = 0; f < kPieces / 2; ++f) {
      if (f * 16 >= size) break;
      unsigned b[4];  // 16 features: the first 8 keys, then the other 8
      ldmatrix_x4<true>(b, values + (k * 16 + lane.matrix % 2 * 8 + lane.matrix_row) * stride + f * 16 +
                               lane.matrix / 2 * 8);
      mma_m16n8k16<Stored>(result[2 * f], a, b[0], b[1]);
      mma_m16n8k16<Stored>(result[2 * f + 1], a, b[2], b[3]);
    }
  }
}

/// Writes each result, divided by the sum of its weights, to memory.
template <int kPieces, typename Stored>
__device__ __forceinline__ void store_results(const Heads<Stored>& heads, const QueryTile& tile, int head,
                                              const OnlineSoftmax (&softmax)[2],
                                              const float (&result)[kPieces][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float inverse = 1.0f / warp_sum<4>(softmax[half].sum);
    const int row = query_of_lane(half);
    if (row >= tile.count) continue;
#pragma unroll
    for (int f = 0; f < kPieces; ++f) {
      if (f * 8 >= heads.size) break;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        heads.store(tile.first_token + row, head, f * 8 + lane_place().pair + i,
                    result[f][half * 2 + i] * inverse);
      }
    }
  }
}

/// Block (tile, head). The head size must be a multiple of 16, at most kMaxHead.
template <int kMaxHead, int kTileKeys, typename Stored>
__global__ __launch_bounds__(kTensorCoreThreads) void attend_tile_tensor_cores(Heads<Stored> heads) {
  begin_after_previous();
  const QueryTile tile = query_tile(heads.sequences, kTensorCoreQueries);
  if (tile.count == 0) return;
  const int head = static_cast<int>(blockIdx.y), kv_head = head / heads.group(), size = heads.size;
  const KeyTiles<kTileKeys, Stored> tiles{reinterpret_cast<Stored*>(dynamic_shared_memory),
                                          tensor_core_stride(size)};
  begin_to_fetch(heads, tile, kv_head, 0, tiles);
  unsigned queries[kMaxHead / 16][4];
  load_queries(heads, tile, head, queries);

  OnlineSoftmax softmax[2];
  float result[kMaxHead / 8][4] = {};
  const float scale = heads.scale * 1.44269504f;  // log2(e), because GPUs compute powers of 2
  const int window_begin = heads.first_key(tile.position);
  for (int number = 0; window_begin + number * kTileKeys < tile.seen(); ++number) {
    cp_async_wait_group<0>();
    __syncthreads();  // all warps see the tile; none reads the previous one any more
    const int first_key = window_begin + number * kTileKeys, first_query = first_query_of_warp();
    if (first_key + kTileKeys < tile.seen()) begin_to_fetch(heads, tile, kv_head, number + 1, tiles);
    const bool sees = first_query < tile.count && first_key <= tile.position + first_query + 15;
    if (!sees) continue;  // no query of the warp sees a key of this tile

    float scores[kTileKeys / 8][4] = {}, shrink[2];
    multiply_keys(queries, tiles.keys(number), size, scores);
    hide_unseen_keys(heads, first_key, tile.position, scores);
    exponentials(scale, scores, softmax, shrink);
    shrink_results(shrink, result);
    add_values(scores, tiles.values(number), size, result);
  }
  store_results(heads, tile, head, softmax, result);
}

}  // namespace staircase::cuda
