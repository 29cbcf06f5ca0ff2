// What the kernels of the ladder share: one warp computes an output, and each lane loads 16 bytes at a time.
#pragma once

#include "kernels/cuda/device_functions.cuh"
#include "kernels/rungs/cuda/boundaries/boundaries.h"

namespace staircase::rungs::gpu_boundaries {

/// A lane's weights of one row.
struct Weights {
  float4 own[kWidest / 128];

  /// Requests the weights and returns before they arrive. Past the last row it requests nothing.
  __device__ __forceinline__ void request(const Chain& c, int layer, int output) {
    const auto* const row = reinterpret_cast<const float4*>(c.row(layer, output));
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int j = 0; j < kWidest / 128; ++j) {
      if (output < c.width && lane + j * 32 < c.width / 4) own[j] = __ldg(row + lane + j * 32);
    }
  }

  /// Multiplies the weights by the layer's x. Lane 0 stores the result.
  __device__ __forceinline__ void multiply(const Chain& c, int layer, int output) const {
    const auto* const x = reinterpret_cast<const float4*>(c.input(layer));
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kWidest / 128; ++j) {
      if (output >= c.width || lane + j * 32 >= c.width / 4) continue;
      const float4 at = x[lane + j * 32];
      sum += own[j].x * at.x + own[j].y * at.y + own[j].z * at.z + own[j].w * at.w;
    }
    sum = warp_sum(sum);
    if (output < c.width && lane == 0) c.output(layer)[output] = sum;
  }
};

/// The number of this warp in the grid.
__device__ __forceinline__ int own_warp() {
  return static_cast<int>(blockIdx.x * (kThreads / 32) + threadIdx.x / 32);
}

}  // namespace staircase::rungs::gpu_boundaries
