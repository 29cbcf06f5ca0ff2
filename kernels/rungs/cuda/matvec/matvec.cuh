// The dot product that kernels of the ladder share.
#pragma once

#include "kernels/cuda/tensor_cores.cuh"
#include "kernels/rungs/cuda/matvec/matvec.h"

namespace staircase::rungs::gpu_matvec {

__device__ __forceinline__ float dot(float4 a, float4 b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

}  // namespace staircase::rungs::gpu_matvec
