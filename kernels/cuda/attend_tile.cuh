// Attention of many queries (prefill), in float32: a block takes 32 neighbouring queries of a head and walks
// over the keys in tiles of 32, which it brings to shared memory, so each key is read from memory once for 32
// queries. Limited by arithmetic, and here by the bandwidth of shared memory.
//
// Keys and values in 16 bits are widened to float32 where they are loaded.
#pragma once

#include "kernels/cuda/attention.cuh"

namespace staircase::cuda {

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

/// Block (tile, head). kMaxHead ≥ head size, a multiple of 32.
template <int kMaxHead, typename Stored>
__global__ __launch_bounds__(kTileThreads) void attend_tile(Heads<Stored> heads) {
  take_turn();
  static_assert(kTileQueries == kTileKeys, "load_tile serves both");
  const QueryTile tile = query_tile(heads.sequences, kTileQueries);
  if (tile.count == 0) return;
  const int head = static_cast<int>(blockIdx.y), size = heads.size, stride = tile_stride(size);

  float* const queries = reinterpret_cast<float*>(dynamic_shared_memory);  // [kTileQueries, stride]
  float* const tile_rows = queries + kTileQueries * stride;  // [kTileKeys, stride], keys, then values
  float* const weights = tile_rows + kTileKeys * stride;     // [kTileQueries, kWeightStride]
  load_tile(heads.queries + heads.query(tile.first_token, head),
            static_cast<std::int64_t>(heads.n_head) * size, tile.count, size, heads.scale, queries);

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

  for (int first_key = 0; first_key < tile.seen(); first_key += kTileKeys) {
    const std::int64_t place = heads.key(tile.sequence, head, first_key);
    const int keys = min(kTileKeys, tile.seen() - first_key);
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
      const int own_position = tile.position + first_row + q;
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
    if (first_row + q >= tile.count) continue;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int column = (p * kTeam + member) * 4;
      const float4 r = result[q][p];
      const float values[] = {r.x, r.y, r.z, r.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (column + i < size)
          heads.store(tile.first_token + first_row + q, head, column + i, values[i] * inverse);
      }
    }
  }
}

}  // namespace staircase::cuda
