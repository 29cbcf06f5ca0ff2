// Attention for many queries (prefill), in float32. A block computes 32 neighbouring queries of a head and
// goes through the keys in tiles of 32. It loads each tile into shared memory, so 32 queries share one read
// of a key. The limit is the bandwidth of shared memory, which feeds the arithmetic.
//
// Keys and values in fewer bits are widened to float32 as they are loaded, and those in int8 multiplied by
// their scale. In int4 they are rotated, so queries are too, and results are rotated back.
#pragma once

#include "kernels/cuda/attention.cuh"

namespace staircase::cuda {

constexpr int kTileThreads = 128;
constexpr int kTileQueries = 32, kTileKeys = 32;
constexpr int kLargestTiledHead = 128;

// Each thread has 2 queries of the tile. The 8 threads that share these queries are neighbours in a warp.
// Each of them has 4 of the 32 keys, and later every eighth group of 4 columns of the values.
constexpr int kTeam = 8;
constexpr int kThreadQueries = kTileQueries * kTeam / kTileThreads, kThreadKeys = kTileKeys / kTeam;

/// Rows in shared memory have 4 more floats than a query or key, so they begin in different banks.
__host__ __device__ constexpr int tile_stride(int head_size) {
  return divide_up(head_size, 4) * 4 + 4;
}
constexpr int kWeightStride = kTileKeys + 4;

constexpr std::size_t tile_shared_bytes(int head_size) {
  return sizeof(float) * static_cast<std::size_t>((kTileQueries + kTileKeys) * tile_stride(head_size) +
                                                  kTileQueries * kWeightStride);
}

/// Loads rows of `width` elements into shared memory, times `scale`; row r begins at from(r). Everything past
/// the end becomes 0.
template <typename From>
__device__ __forceinline__ void load_tile(const From& from, int rows, int width, float scale, float* tile) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int tile_width = tile_stride(width) - 4;
  for (int row = warp; row < kTileKeys; row += kTileThreads / kWarp) {
    const auto* const elements = from(min(row, rows - 1));
    const float factor = scale * scale_of_head(elements, width);
    for (int i = lane; i < tile_width; i += kWarp) {
      tile[row * tile_stride(width) + i] =
          row < rows && i < width ? feature_of(elements, width, i) * factor : 0.0f;
    }
  }
}

__device__ __forceinline__ float dot(float4 a, float4 b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

__device__ __forceinline__ float4 load4(const float* from) {
  return *reinterpret_cast<const float4*>(from);
}

/// The thread's number among the threads that share its queries, and the first of its queries in the tile.
__device__ __forceinline__ int team_member() {
  return static_cast<int>(threadIdx.x) % kTeam;
}
__device__ __forceinline__ int first_own_query() {
  return static_cast<int>(threadIdx.x) / kTeam * kThreadQueries;
}

/// The first column of a thread's piece.
__device__ __forceinline__ int first_column(int piece) {
  return (piece * kTeam + team_member()) * 4;
}

/// The scores of a thread's queries and keys.
using ThreadScores = float[kThreadQueries][kThreadKeys];

/// scores += q · k, from queries [kTileQueries, stride] and keys [kTileKeys, stride] in shared memory.
__device__ __forceinline__ void multiply_keys(const float* queries, const float* keys, int size,
                                              ThreadScores& scores) {
  const int stride = tile_stride(size);
  for (int i = 0; i < size; i += 4) {
    float4 query[kThreadQueries];
#pragma unroll
    for (int q = 0; q < kThreadQueries; ++q) query[q] = load4(queries + (first_own_query() + q) * stride + i);
#pragma unroll
    for (int k = 0; k < kThreadKeys; ++k) {
      const float4 key = load4(keys + (team_member() + k * kTeam) * stride + i);
#pragma unroll
      for (int q = 0; q < kThreadQueries; ++q) scores[q][k] += dot(query[q], key);
    }
  }
}

/// Sets the scores of unseen keys to -infinity: keys after the query's own position or before its window.
/// `first_key` is the first key of the tile of keys, and `position` the position of the first query of the
/// tile of queries.
template <typename Stored>
__device__ __forceinline__ void hide_unseen_keys(const Heads<Stored>& heads, int first_key, int position,
                                                 ThreadScores& scores) {
#pragma unroll
  for (int q = 0; q < kThreadQueries; ++q) {
#pragma unroll
    for (int k = 0; k < kThreadKeys; ++k) {
      if (!heads.sees(position + first_own_query() + q, first_key + team_member() + k * kTeam))
        scores[q][k] = -INFINITY;
    }
  }
}

/// Turns the scores into weights in shared memory, [kTileQueries, kWeightStride]. Sets shrink[q] to the
/// factor by which the earlier sums of query q shrink.
__device__ __forceinline__ void exponentials(const ThreadScores& scores,
                                             OnlineSoftmax (&softmax)[kThreadQueries], float* weights,
                                             float (&shrink)[kThreadQueries]) {
#pragma unroll
  for (int q = 0; q < kThreadQueries; ++q) {
    float tile_largest = -INFINITY;
#pragma unroll
    for (int k = 0; k < kThreadKeys; ++k) tile_largest = fmaxf(tile_largest, scores[q][k]);
    const float largest = fmaxf(softmax[q].largest, warp_max<kTeam>(tile_largest));
    const float reference = OnlineSoftmax::reference(largest);
    shrink[q] = expf(softmax[q].largest - reference);
    softmax[q].largest = largest;
    softmax[q].sum *= shrink[q];
#pragma unroll
    for (int k = 0; k < kThreadKeys; ++k) {
      const float weight = expf(scores[q][k] - reference);
      softmax[q].sum += weight;
      weights[(first_own_query() + q) * kWeightStride + team_member() + k * kTeam] = weight;
    }
  }
}

/// result[q] *= shrink[q].
template <int kPieces>
__device__ __forceinline__ void shrink_results(const float (&shrink)[kThreadQueries],
                                               float4 (&result)[kThreadQueries][kPieces]) {
#pragma unroll
  for (int q = 0; q < kThreadQueries; ++q) {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      float4& r = result[q][p];
      r = make_float4(r.x * shrink[q], r.y * shrink[q], r.z * shrink[q], r.w * shrink[q]);
    }
  }
}

/// result[q] += the sum of the values [kTileKeys, stride], each times its weight for q, in the thread's
/// columns.
template <int kPieces>
__device__ __forceinline__ void add_values(const float* weights, const float* values, int size,
                                           float4 (&result)[kThreadQueries][kPieces]) {
  const int stride = tile_stride(size);
  for (int k = 0; k < kTileKeys; ++k) {
    float weight[kThreadQueries];
#pragma unroll
    for (int q = 0; q < kThreadQueries; ++q) weight[q] = weights[(first_own_query() + q) * kWeightStride + k];
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      if (first_column(p) >= size) break;
      const float4 value = load4(values + k * stride + first_column(p));
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

/// Calls put(query of the tile, feature, result), each divided by the sum of its weights.
template <int kPieces, typename Put>
__device__ __forceinline__ void put_results(int count, int size,
                                            const OnlineSoftmax (&softmax)[kThreadQueries],
                                            const float4 (&result)[kThreadQueries][kPieces], const Put& put) {
#pragma unroll
  for (int q = 0; q < kThreadQueries; ++q) {
    const float inverse = 1.0f / warp_sum<kTeam>(softmax[q].sum);
    const int row = first_own_query() + q;
    if (row >= count) continue;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int column = first_column(p);
      const float4 r = result[q][p];
      const float values[] = {r.x, r.y, r.z, r.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (column + i < size) put(row, column + i, values[i] * inverse);
      }
    }
  }
}

/// Block (tile, head). kMaxHead ≥ head size, a multiple of 32.
template <int kMaxHead, typename Stored>
__global__ __launch_bounds__(kTileThreads) void attend_tile(Heads<Stored> heads) {
  begin_after_previous();
  static_assert(kTileQueries == kTileKeys, "load_tile serves both");
  const QueryTile tile = query_tile(heads.sequences, kTileQueries);
  if (tile.count == 0) return;
  const int head = static_cast<int>(blockIdx.y), kv_head = head / heads.group();
  const int size = heads.size, stride = tile_stride(size);

  float* const queries = reinterpret_cast<float*>(dynamic_shared_memory);  // [kTileQueries, stride]
  float* const tile_rows = queries + kTileQueries * stride;  // [kTileKeys, stride], keys, then values
  float* const weights = tile_rows + kTileKeys * stride;     // [kTileQueries, kWeightStride]
  load_tile([&](int row) { return heads.queries + heads.query(tile.first_token + row, head); }, tile.count,
            size, heads.scale, queries);
  [[maybe_unused]] const auto rotate_queries = [&] {
    rotate_heads(queries, tile.count, stride, size, static_cast<int>(threadIdx.x), kTileThreads,
                 [] { __syncthreads(); });
  };
  if constexpr (kIsRotated<Stored>) rotate_queries();

  OnlineSoftmax softmax[kThreadQueries];
  float4 result[kThreadQueries][kMaxHead / (4 * kTeam)] = {};
  for (int first_key = heads.first_key(tile.position); first_key < tile.seen(); first_key += kTileKeys) {
    const auto place = [&](int row) { return heads.key(tile.sequence, kv_head, first_key + row); };
    const int keys = min(kTileKeys, tile.seen() - first_key);
    __syncthreads();  // no thread reads the last tile's values any more
    load_tile([&](int row) { return heads.keys + place(row); }, keys, size, 1.0f, tile_rows);
    __syncthreads();

    ThreadScores scores = {};
    float shrink[kThreadQueries];
    multiply_keys(queries, tile_rows, size, scores);
    hide_unseen_keys(heads, first_key, tile.position, scores);
    exponentials(scores, softmax, weights, shrink);
    shrink_results(shrink, result);

    __syncthreads();  // the weights are stored; no thread reads the keys any more
    load_tile([&](int row) { return heads.values + place(row); }, keys, size, 1.0f, tile_rows);
    __syncthreads();
    add_values(weights, tile_rows, size, result);
  }
  const auto store = [&](int row, int i, float value) {
    heads.store(tile.first_token + row, head, i, value);
  };
  if constexpr (kIsRotated<Stored>) {  // no thread reads the queries any more
    put_results(tile.count, size, softmax, result,
                [&](int row, int i, float value) { queries[row * stride + i] = value; });
    rotate_queries();
    for (int i = static_cast<int>(threadIdx.x); i < tile.count * size; i += kTileThreads) {
      store(i / size, i % size, queries[i / size * stride + i % size]);
    }
  } else {
    put_results(tile.count, size, softmax, result, store);
  }
}

}  // namespace staircase::cuda
