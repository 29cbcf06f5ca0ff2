// Functions that the kernels of the ladder share.
#pragma once

#include "kernels/cuda/device_functions.cuh"
#include "kernels/rungs/cuda/attention/attention.h"

namespace staircase::rungs::gpu_attention {

__device__ __forceinline__ float dot(float4 a, float4 b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

__device__ __forceinline__ float4 scaled(float4 a, float factor) {
  return {a.x * factor, a.y * factor, a.z * factor, a.w * factor};
}

/// sum += value · weight
__device__ __forceinline__ void add(float4& sum, float4 value, float weight) {
  sum = {sum.x + value.x * weight, sum.y + value.y * weight, sum.z + value.z * weight,
         sum.w + value.w * weight};
}

/// How the threads of a block share rows of `stride` numbers. Neighbouring threads share a row, with 16 bytes
/// each, and the following threads share the next row. Remaining threads have row == rows.
struct Rows {
  int columns, rows, row, column;

  __device__ explicit Rows(int stride) : columns(stride / 4) {
    const int thread = static_cast<int>(threadIdx.x);
    rows = kThreads / columns;
    row = min(thread / columns, rows);
    column = thread % columns;
  }
};

/// Returns the sum over all threads of a column, in the threads with row 0. All threads must call it, and
/// need a barrier before they call it again.
__device__ __forceinline__ float4 add_rows(const Rows& own, float4 sum) {
  __shared__ float4 sums[kThreads];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int r = 1; own.row == 0 && r < own.rows; ++r) add(sum, sums[r * own.columns + own.column], 1.0f);
  return sum;
}

// ── For rungs 5 to 7, in which a block computes a group of heads ──

/// One warp per head turns the scores of a piece into weights, relative to the largest score so far, and adds
/// them to the head's part. Sets shrink[h] to the factor by which the earlier sums of head h shrink.
__device__ __forceinline__ void weigh(int heads, int count, float (*scores)[kThreads], Part* parts,
                                      float* shrink) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int h = static_cast<int>(threadIdx.x) / 32; h < heads; h += kThreads / 32) {
    const Part before = parts[h];
    float largest = before.largest, sum = 0.0f;
    for (int k = lane; k < count; k += 32) largest = fmaxf(largest, scores[h][k]);
    largest = warp_max(largest);
    for (int k = lane; k < count; k += 32) sum += scores[h][k] = expf(scores[h][k] - largest);
    sum = warp_sum(sum);
    __syncwarp();  // all lanes have read parts[h]
    if (lane == 0) {
      shrink[h] = expf(before.largest - largest);
      parts[h] = {largest, before.sum * shrink[h] + sum};
    }
  }
}

/// features[h] = features[h] · shrink[h] + the sum of a piece's values, each times head h's weight for it.
__device__ __forceinline__ void add_values(const Attention& a, int kv_head, int first, int count,
                                           const Rows& own, const float (*weights)[kThreads],
                                           const float* shrink, float4 (&features)[kMostHeads]) {
#pragma unroll
  for (int h = 0; h < kMostHeads; ++h) {
    if (h < a.group()) features[h] = scaled(features[h], shrink[h]);
  }
  for (int k = own.row; own.row < own.rows && k < count; k += own.rows) {
    const float4 value = reinterpret_cast<const float4*>(a.value(kv_head, first + k))[own.column];
#pragma unroll
    for (int h = 0; h < kMostHeads; ++h) {
      if (h < a.group()) add(features[h], value, weights[h][k]);
    }
  }
}

}  // namespace staircase::rungs::gpu_attention
