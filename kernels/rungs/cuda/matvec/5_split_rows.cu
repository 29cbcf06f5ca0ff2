// A block of four warps computes each output, and each warp multiplies every fourth piece of the row. A
// product with few outputs then has four times as many threads, and four times as many bytes in flight. The
// sums of the warps are added in shared memory, after a barrier.
#include "kernels/rungs/cuda/matvec/matvec.cuh"

namespace staircase::rungs::gpu_matvec {
namespace {

constexpr int kThreads = 128, kLoads = 4;

__global__ void multiply(Matvec m) {
  __shared__ float sums[kThreads / 32];
  const int thread = static_cast<int>(threadIdx.x), loads = m.stride / 4;
  const auto* const row = reinterpret_cast<const float4*>(m.row<float>(static_cast<int>(blockIdx.x)));
  const auto* const x = reinterpret_cast<const float4*>(m.x);
  float sum = 0.0f;
  for (int first = thread; first < loads; first += kLoads * kThreads) {
    float4 own[kLoads];
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      if (first + l * kThreads < loads) own[l] = row[first + l * kThreads];
    }
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      if (first + l * kThreads < loads) sum += dot(own[l], x[first + l * kThreads]);
    }
  }
  sum = warp_sum(sum);
  if (thread % 32 == 0) sums[thread / 32] = sum;
  __syncthreads();
  if (thread == 0) m.y[blockIdx.x] = sums[0] + sums[1] + sums[2] + sums[3];
}

void start(const Matvec& m, Stream stream) {
  launch("a rung was started", stream, blocks(m.n_out), kThreads, 0, multiply, m);
}

}  // namespace

constexpr MatvecRung kSplitRows{"5-split-rows", "four warps share a row", Stored::kFloat32, start};

}  // namespace staircase::rungs::gpu_matvec
