// split_heads: moves the products [q | k | v] of each token to the queries and to the cache. First it
// normalizes queries and keys and rotates them by the position of their token. The pairs (i, i + rotary / 2)
// of the first `rotary` features become
//
//   a' = a cos - b sin, b' = b cos + a sin.
//
// projected [n_tokens, (n_head + 2 n_kv_head) head_size], rotations [n_tokens, rotary], queries [n_tokens,
// n_head head_size], keys and values [n_rows, n_kv_head, capacity, head_size], or in blocks. In an int8 cache
// a head is quantized as a whole, and its scale is stored after it (KeysValues in device.h). For an int4
// cache a head is first rotated in shared memory. Each element takes about ten operations and is read and
// written once. The limit is bandwidth, or launch latency for a few tokens.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/int4_cache.cuh"
#include "kernels/cuda/normalize.cuh"

namespace staircase {
namespace cuda {

constexpr int kSplitHeadsThreads = 128;
constexpr int kHeadsOfBlock = kSplitHeadsThreads / kWarp;

/// The heads of a token, how they are transformed and where they go.
struct HeadPlaces {
  Sequences sequences;
  int n_head, n_kv_head, size;
  RowNorm query_norm, key_norm;
  bool heads_together;     ///< each norm covers all heads together
  const float* rotations;  ///< [n_tokens, rotary]
  int rotary;
  Blocks blocks;
  float* queries;       ///< [n_tokens, n_head · size]
  DType stored;         ///< the type of keys and values
  void *keys, *values;  ///< [n_blocks, n_kv_head, block_size, kept]
  int kept;             ///< elements from one position to the next
};

/// A head that begins at feature `first` of a row of `width` features. The norm covers the whole row.
struct HeadOfRow {
  const float* row;
  int width, first;
};

/// Calls put(i, feature i of the head, normalized and rotated). rotations [rotary]: cosines, then sines.
/// Every lane of the warp must call this.
template <typename Put>
__device__ __forceinline__ void rotate_head(const HeadOfRow& head, int size, const RowNorm& norm,
                                            const float* rotations, int rotary, const Put& put) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, half = rotary / 2;
  const RowScale scale =
      scale_of_row<1>(head.row, norm, head.width, lane, kWarp, [](float value) { return warp_sum(value); });
  const auto feature = [&](int i) {
    const int place = head.first + i;
    return norm.apply(scale, load_vector<1>(head.row + place), norm.parameters<1>(place)).values[0];
  };
  for (int i = lane; i < half; i += kWarp) {
    const float a = feature(i), b = feature(i + half), cosine = rotations[i], sine = rotations[half + i];
    put(i, a * cosine - b * sine);
    put(i + half, b * cosine + a * sine);
  }
  for (int i = rotary + lane; i < size; i += kWarp) put(i, feature(i));
}

/// Returns |value| if it is larger than `largest` or NaN, otherwise `largest`.
__device__ __forceinline__ float larger_magnitude(float largest, float value) {
  return fabsf(value) > largest || value != value ? fabsf(value) : largest;
}

/// Quantizes a head to 8 bits. for_each(put) must call put(i, feature i) for the lane's features, the same
/// ones each time. Every lane of the warp must call this.
template <typename ForEach>
__device__ __forceinline__ void store_rounded(const ForEach& for_each, int size, std::int8_t* to) {
  float largest = 0.0f;
  for_each([&](int, float value) { largest = larger_magnitude(largest, value); });
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    largest = larger_magnitude(largest, __shfl_xor_sync(kAllLanes, largest, distance));
  }
  const float scale = largest / 127.0f;
  for_each([&](int i, float value) {
    const float whole = scale == 0.0f ? 0.0f : rintf(value / scale);
    to[i] = static_cast<std::int8_t>(fmaxf(fminf(whole, 127.0f), -127.0f));
  });
  if (threadIdx.x % kWarp == 0) *reinterpret_cast<float*>(to + size) = scale;
}

/// Rotates a head and rounds it to 4 bits. `head` [size] is the warp's own shared memory. Every lane must
/// call it.
template <typename ForEach>
__device__ __forceinline__ void store_rotated(const ForEach& for_each, int size, float* head, Int4Byte* to) {
  for_each([&](int i, float value) { head[i] = value; });
  rotate_heads(head, 1, size, size, static_cast<int>(threadIdx.x) % kWarp, kWarp, [] { __syncwarp(); });
  store_levels(head, size, to);
}

/// One warp per head: block (token, kHeadsOfBlock heads).
__global__ __launch_bounds__(kSplitHeadsThreads) void split_heads(const float* projected, HeadPlaces to) {
  begin_after_previous();
  const int token = static_cast<int>(blockIdx.x), heads = to.n_head + 2 * to.n_kv_head, size = to.size;
  const int head = static_cast<int>(blockIdx.y * kSplitHeadsThreads + threadIdx.x) / kWarp;
  if (head >= heads) return;
  const float* const x = projected + (static_cast<std::int64_t>(token) * heads + head) * size;
  const float* const rotations = to.rotations + static_cast<std::int64_t>(token) * to.rotary;
  // Head `number` of `count`, as its own row or as part of the row of all heads.
  const auto in_row = [&](int number, int count) {
    return to.heads_together ? HeadOfRow{x - number * size, count * size, number * size}
                             : HeadOfRow{x, size, 0};
  };
  if (head < to.n_head) {
    float* const query = to.queries + (static_cast<std::int64_t>(token) * to.n_head + head) * size;
    rotate_head(in_row(head, to.n_head), size, to.query_norm, rotations, to.rotary,
                [&](int i, float value) { query[i] = value; });
    return;
  }
  const int sequence = to.sequences.of_token(token), position = to.sequences.position(sequence, token);
  const int kv_head = (head - to.n_head) % to.n_kv_head;
  const std::int64_t place = to.blocks.place(sequence, kv_head, to.n_kv_head, position) * to.kept;
  const auto store = [&](void* memory, const auto& for_each) {
    if (to.stored == DType::kInt8) {
      store_rounded(for_each, size, static_cast<std::int8_t*>(memory) + place);
    } else if (to.stored == DType::kInt4) {
      float* const own = reinterpret_cast<float*>(dynamic_shared_memory) + threadIdx.x / kWarp * size;
      store_rotated(for_each, size, own, static_cast<Int4Byte*>(memory) + place);
    } else {
      for_each([&](int i, float value) { store_as(to.stored, memory, place + i, value); });
    }
  };
  if (head < to.n_head + to.n_kv_head) {
    store(to.keys, [&](const auto& put) {
      rotate_head(in_row(kv_head, to.n_kv_head), size, to.key_norm, rotations, to.rotary, put);
    });
  } else {
    store(to.values, [&](const auto& put) {
      for (int i = static_cast<int>(threadIdx.x) % kWarp; i < size; i += kWarp) put(i, x[i]);
    });
  }
}

}  // namespace cuda

void CudaDevice::split_heads(const Batch& batch, const Tensor& projected, const HeadRule& rule,
                             Tensor& queries, KeysValues& keys_values) {
  if (listed(Operation::kSplitHeads, batch, projected, rule, queries, keys_values)) return;
  const std::int64_t n_kv_head = keys_values.keys.dim(1), size = keys_values.head_size(),
                     n_head = queries.dim(1) / size;
  const cuda::HeadPlaces places{cuda::Sequences(batch),
                                static_cast<int>(n_head),
                                static_cast<int>(n_kv_head),
                                static_cast<int>(size),
                                cuda::RowNorm(rule.query_norm),
                                cuda::RowNorm(rule.key_norm),
                                rule.heads_together,
                                rule.rotations.data<float>(),
                                rule.rotations.size() == 0 ? 0 : static_cast<int>(rule.rotations.dim(1)),
                                cuda::Blocks(keys_values),
                                queries.data<float>(),
                                keys_values.keys.dtype(),
                                keys_values.keys.data<void>(),
                                keys_values.values.data<void>(),
                                static_cast<int>(keys_values.keys.dim(3))};
  const std::int64_t heads = n_head + 2 * n_kv_head;
  const bool rotates = places.stored == DType::kInt4;
  const std::int64_t shared_bytes = rotates ? cuda::kHeadsOfBlock * size * std::int64_t{sizeof(float)} : 0;
  cuda::launch("split_heads was started", stream(),
               dim3(cuda::blocks(batch.n_tokens()),
                    cuda::blocks(cuda::divide_up<std::int64_t>(heads, cuda::kHeadsOfBlock))),
               cuda::kSplitHeadsThreads, static_cast<std::size_t>(shared_bytes), cuda::split_heads,
               projected.data<float>(), places);
}

}  // namespace staircase
