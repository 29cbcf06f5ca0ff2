// Attention of many queries (prefill) on tensor cores, for keys and values in 16 bits, as FlashAttention-2
// does it (Dao 2023, section 3): a block takes 64 neighbouring queries of a head, each of its warps 16 of
// them, and walks over the keys in tiles. While one tile is multiplied, the next one is on its way to shared
// memory.
//
// A warp keeps all that belongs to its queries in registers: the queries, the scores of a tile, which become
// weights where they are, and the sums. The tensor cores take 16-bit factors, so queries and weights are
// rounded to the type of the keys; scores, softmax and sums are in float32.
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/tensor_cores.cuh"

namespace staircase::cuda {

constexpr int kTensorCoreThreads = 128;
constexpr int kTensorCoreQueries = 16 * kTensorCoreThreads / kWarp;

/// Rows of a tile begin 16 bytes further apart than they are long. The length is a multiple of 32 bytes, so
/// the pieces of 16 bytes at one place of 8 neighbouring rows, which ldmatrix reads at once, lie in different
/// banks.
__host__ __device__ constexpr int tensor_core_stride(int head_size) {
  return head_size + 8;
}

/// Two tiles of keys and of values.
constexpr std::size_t tensor_core_shared_bytes(int tile_keys, int head_size) {
  return sizeof(std::uint16_t) * static_cast<std::size_t>(2 * 2 * tile_keys * tensor_core_stride(head_size));
}

/// Block (tile, head). The head size must be a multiple of 16, at most kMaxHead.
template <int kMaxHead, int kTileKeys, typename Stored>
__global__ __launch_bounds__(kTensorCoreThreads) void attend_tile_tensor_cores(Heads<Stored> heads) {
  take_turn();
  const QueryTile tile = query_tile(heads.sequences, kTensorCoreQueries);
  if (tile.count == 0) return;
  const int head = static_cast<int>(blockIdx.y), size = heads.size, stride = tensor_core_stride(size);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  // Where the lane's numbers stand in a piece of a matrix, as tensor_cores.cuh has it, and which row of which
  // of four matrices it names to ldmatrix.
  const int group = lane / 4, pair = lane % 4 * 2, matrix = lane / 8, matrix_row = lane % 8;
  const int first_row = thread / kWarp * 16;
  const auto row_of = [&](int half) { return first_row + group + 8 * half; };

  Stored* const tiles = reinterpret_cast<Stored*>(dynamic_shared_memory);  // [2, 2, kTileKeys, stride]
  const auto keys_of = [&](int number) { return tiles + number % 2 * 2 * kTileKeys * stride; };
  const auto values_of = [&](int number) { return keys_of(number) + kTileKeys * stride; };
  const auto begin_to_fetch = [&](int number) {
    const int first_key = number * kTileKeys, count = min(kTileKeys, tile.seen() - first_key);
    const std::int64_t place = heads.key(tile.sequence, head, first_key);
    const int pieces = size / 8;
    for (int i = thread; i < kTileKeys * pieces; i += kTensorCoreThreads) {
      const int row = i / pieces, feature = i % pieces * 8;
      // Rows behind the last key repeat it: what lies there may be NaN, which no weight of 0 would hide.
      const std::int64_t from = place + min(row, count - 1) * size + feature;
      cp_async_16(keys_of(number) + row * stride + feature, heads.keys + from);
      cp_async_16(values_of(number) + row * stride + feature, heads.values + from);
    }
    cp_async_commit_group();
  };
  begin_to_fetch(0);

  unsigned query[kMaxHead / 16][4];
#pragma unroll
  for (int f = 0; f < kMaxHead / 16; ++f) {
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int row = row_of(part % 2), feature = f * 16 + part / 2 * 8 + pair;
      Vector<float, 2> both{};
      if (row < tile.count && feature < size) {
        both = load_vector<2>(heads.queries + heads.query(tile.first_token + row, head) + feature);
      }
      query[f][part] = pack<Stored>(both.values[0], both.values[1]);
    }
  }

  float result[kMaxHead / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  const float scale = heads.scale * 1.44269504f;  // log2(e): a GPU computes powers of 2

  for (int number = 0; number * kTileKeys < tile.seen(); ++number) {
    cp_async_wait_group<0>();
    __syncthreads();  // the tile is there for all, and nobody still reads the one before
    if ((number + 1) * kTileKeys < tile.seen()) begin_to_fetch(number + 1);
    const int first_key = number * kTileKeys, first_position = tile.position + first_row;
    if (first_row >= tile.count || first_key > first_position + 15) continue;  // nothing to see for this warp

    float scores[kTileKeys / 8][4] = {};
    const Stored* const keys = keys_of(number);
#pragma unroll
    for (int f = 0; f < kMaxHead / 16; ++f) {
      if (f * 16 >= size) break;
#pragma unroll
      for (int k = 0; k < kTileKeys / 16; ++k) {
        unsigned b[4];  // of 16 keys, the first 8 features and the others
        ldmatrix_x4<false>(b,
                           keys + (k * 16 + matrix / 2 * 8 + matrix_row) * stride + f * 16 + matrix % 2 * 8);
        mma_m16n8k16<Stored>(scores[2 * k], query[f], b[0], b[1]);
        mma_m16n8k16<Stored>(scores[2 * k + 1], query[f], b[2], b[3]);
      }
    }

    if (first_key + kTileKeys - 1 > first_position) {  // some query does not see all of them
#pragma unroll
      for (int k = 0; k < kTileKeys / 8; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = first_key + k * 8 + pair + i % 2;
          if (key > tile.position + row_of(i / 2)) scores[k][i] = -INFINITY;
        }
      }
    }
    float tile_largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int k = 0; k < kTileKeys / 8; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) tile_largest[i / 2] = fmaxf(tile_largest[i / 2], scores[k][i]);
    }
    float shrink[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Every query sees key 0, so from the first tile on this is a number.
      const float new_largest = fmaxf(largest[half], scale * warp_max<4>(tile_largest[half]));
      shrink[half] = ex2_approx_ftz(largest[half] - new_largest);
      largest[half] = new_largest;
      sum[half] *= shrink[half];
    }
#pragma unroll
    for (int k = 0; k < kTileKeys / 8; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[k][i] = ex2_approx_ftz(scale * scores[k][i] - largest[i / 2]);
        sum[i / 2] += scores[k][i];
      }
    }
#pragma unroll
    for (int f = 0; f < kMaxHead / 8; ++f) {
#pragma unroll
      for (int i = 0; i < 4; ++i) result[f][i] *= shrink[i / 2];
    }

    const Stored* const values = values_of(number);
#pragma unroll
    for (int k = 0; k < kTileKeys / 16; ++k) {
      const auto& low = scores[2 * k];
      const auto& high = scores[2 * k + 1];
      const unsigned weights[4] = {pack<Stored>(low[0], low[1]), pack<Stored>(low[2], low[3]),
                                   pack<Stored>(high[0], high[1]), pack<Stored>(high[2], high[3])};
#pragma unroll
      for (int f = 0; f < kMaxHead / 16; ++f) {
        if (f * 16 >= size) break;
        unsigned b[4];  // of 16 features, the first 8 keys and the others
        ldmatrix_x4<true>(b,
                          values + (k * 16 + matrix % 2 * 8 + matrix_row) * stride + f * 16 + matrix / 2 * 8);
        mma_m16n8k16<Stored>(result[2 * f], weights, b[0], b[1]);
        mma_m16n8k16<Stored>(result[2 * f + 1], weights, b[2], b[3]);
      }
    }
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float inverse = 1.0f / warp_sum<4>(sum[half]);
    if (row_of(half) >= tile.count) continue;
#pragma unroll
    for (int f = 0; f < kMaxHead / 8; ++f) {
      if (f * 8 >= size) break;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        heads.store(tile.first_token + row_of(half), head, f * 8 + pair + i,
                    result[f][half * 2 + i] * inverse);
      }
    }
  }
}

}  // namespace staircase::cuda
