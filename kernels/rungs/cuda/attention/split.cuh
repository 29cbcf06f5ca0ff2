// Rung 5 for some of the keys, for rungs in which several blocks share the keys of a head.
#pragma once

#include "kernels/rungs/cuda/attention/attention.cuh"

namespace staircase::rungs::gpu_attention {

/// How many positions a block computes: whole pieces, and enough of them that at most kMostSplits blocks
/// share a head of keys.
inline int share_of(const Attention& a) {
  return divide_up(divide_up(a.positions, kMostSplits), kThreads) * kThreads;
}

/// scores[h][k] = query h · key first + k / √d, for `count` positions and all heads of the group.
__device__ __forceinline__ void score_keys(const Attention& a, int kv_head, int first, int count,
                                           float (*scores)[kThreads]) {
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

/// Attends to the positions begin .. end - 1, and stores the results for each head of the group as part
/// number blockIdx.x.
__device__ __forceinline__ void attend_to(const Attention& a, int kv_head, int begin, int end) {
  __shared__ float scores[kMostHeads][kThreads], shrink[kMostHeads];
  __shared__ Part parts[kMostHeads];
  const Rows own(a.stride);
  if (threadIdx.x < kMostHeads) parts[threadIdx.x] = {-1e30f, 0.0f};
  float4 features[kMostHeads] = {};
  __syncthreads();
  for (int first = begin; first < end; first += kThreads) {
    const int count = min(kThreads, end - first);
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
    const int place = (kv_head * a.group() + h) * kMostSplits + static_cast<int>(blockIdx.x);
    const float4 sum = add_rows(own, features[h]);
    if (own.row == 0) reinterpret_cast<float4*>(a.sums + place * a.stride)[own.column] = sum;
    if (threadIdx.x == 0) a.parts[place] = parts[h];
    __syncthreads();
  }
}

}  // namespace staircase::rungs::gpu_attention
