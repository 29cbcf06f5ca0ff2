// One block per head of keys computes all query heads that share it (grouped-query attention). It loads each
// key and value once for all of them, while rung 4 loads it once for each query head.
#include "kernels/rungs/cuda/attention/attention.cuh"

namespace staircase::rungs::gpu_attention {
namespace {

/// scores[h][k] = query h · key first + k / √d, for `count` positions and all heads of the group.
__device__ void score_keys(const Attention& a, int kv_head, int first, int count, float (*scores)[kThreads]) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int begin = 0; begin < count; begin += kThreads / 8) {
    const int k = begin + thread / 8;
    const auto* const key = reinterpret_cast<const float4*>(a.key(kv_head, first + min(k, count - 1)));
    float own[kMostHeads] = {};
    for (int i = thread % 8; i < a.stride / 4; i += 8) {
      const float4 piece = key[i];
#pragma unroll
      for (int h = 0; h < kMostHeads; ++h) {
        if (h < a.group())
          own[h] += dot(reinterpret_cast<const float4*>(a.query(kv_head * a.group() + h))[i], piece);
      }
    }
#pragma unroll
    for (int h = 0; h < kMostHeads; ++h) {
      if (h < a.group()) own[h] = warp_sum<8>(own[h]);
      if (h < a.group() && thread % 8 == 0 && k < count) scores[h][k] = own[h] * a.scale;
    }
  }
}

__global__ void attend(Attention a) {
  __shared__ float scores[kMostHeads][kThreads], shrink[kMostHeads];
  __shared__ Part parts[kMostHeads];
  const int kv_head = static_cast<int>(blockIdx.x);
  const Rows own(a.stride);
  if (threadIdx.x < kMostHeads) parts[threadIdx.x] = {-1e30f, 0.0f};
  float4 features[kMostHeads] = {};
  __syncthreads();
  for (int first = 0; first < a.positions; first += kThreads) {
    const int count = min(kThreads, a.positions - first);
    score_keys(a, kv_head, first, count, scores);
    __syncthreads();
    weigh(a.group(), count, scores, parts, shrink);
    __syncthreads();
    add_values(a, kv_head, first, count, own, scores, shrink, features);
    __syncthreads();
  }
#pragma unroll
  for (int h = 0; h < kMostHeads; ++h) {
    if (h >= a.group()) break;
    const float4 sum = add_rows(own, features[h]);
    auto* const out = reinterpret_cast<float4*>(a.out + (kv_head * a.group() + h) * a.stride);
    if (own.row == 0) out[own.column] = scaled(sum, 1.0f / parts[h].sum);
    __syncthreads();
  }
}

void start(const Attention& a, Stream stream) {
  launch("a rung was started", stream, blocks(a.n_kv_head), kThreads, 0, attend, a);
}

}  // namespace

constexpr AttentionRung kGroups{"5-groups", "a block for all heads that share keys", start};

}  // namespace staircase::rungs::gpu_attention
