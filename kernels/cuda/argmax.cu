// argmax: the index of the largest value of each row, the lowest one among equals.
//
// x [rows, width], 4 · rows · width bytes read. One block a row: with many rows limited by bandwidth, with
// one by what a single multiprocessor can read, which saves the transfer of a whole row of logits to the host
// all the same.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/device_functions.cuh"

namespace staircase {
namespace cuda {

constexpr int kArgmaxThreads = 512;

/// A value and where it stands.
struct Candidate {
  float value;
  int index;

  __device__ void meet(float other_value, int other_index) {
    if (other_value > value || (other_value == value && other_index < index)) {
      value = other_value;
      index = other_index;
    }
  }

  __device__ void meet_warp() {
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      const float other_value = __shfl_xor_sync(kAllLanes, value, distance);
      const int other_index = __shfl_xor_sync(kAllLanes, index, distance);
      meet(other_value, other_index);
    }
  }
};

__global__ __launch_bounds__(kArgmaxThreads) void find_largest(const float* x, int width, std::int32_t* out) {
  take_turn();
  constexpr int kWarps = kArgmaxThreads / kWarp;
  __shared__ Candidate warps[kWarps];
  const float* const row = x + static_cast<std::int64_t>(blockIdx.x) * width;
  // Threads beyond the row, and all of them in a row of NaN, propose the first place.
  Candidate best{row[0], 0};
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kArgmaxThreads) best.meet(row[i], i);
  best.meet_warp();
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = best;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  best = warps[threadIdx.x % kWarps];
  best.meet_warp();
  if (threadIdx.x == 0) out[blockIdx.x] = best.index;
}

}  // namespace cuda

void CudaDevice::argmax(const Tensor& x, Tensor& out) {
  if (listed(Operation::kArgmax, x, out)) return;
  cuda::launch("argmax was started", stream(), cuda::blocks(x.dim(0)), cuda::kArgmaxThreads, 0,
               cuda::find_largest, x.data<float>(), static_cast<int>(x.dim(1)), out.data<std::int32_t>());
}

}  // namespace staircase
