// The kernel starts while the previous one still runs (programmatic dependent launch). W does not depend on
// that kernel, so a thread requests its first weights, then waits for x. So memory is no longer idle between
// two kernels.
//
// Each piece is requested before the previous one is used, so the loop always has loads in flight.
#include "kernels/rungs/cuda/matvec/matvec.cuh"

namespace staircase::rungs::gpu_matvec {
namespace {

constexpr int kThreads = 128, kLoads = 4;

__global__ void multiply(Matvec m) {
  __shared__ float sums[kThreads / 32];
  const int thread = static_cast<int>(threadIdx.x), loads = m.stride / 4;
  const auto* const row = reinterpret_cast<const float4*>(m.row<float>(static_cast<int>(blockIdx.x)));
  const auto* const x = reinterpret_cast<const float4*>(m.x);
  float4 own[kLoads];
  const auto request = [&](int first) {
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      if (first + l * kThreads < loads) own[l] = __ldg(row + first + l * kThreads);
    }
  };
  request(thread);
  let_next_begin();
  wait_for_previous();  // from here on, x is complete

  float sum = 0.0f;
  for (int first = thread; first < loads; first += kLoads * kThreads) {
    float4 now[kLoads];
#pragma unroll
    for (int l = 0; l < kLoads; ++l) now[l] = own[l];
    request(first + kLoads * kThreads);
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      if (first + l * kThreads < loads) sum += dot(now[l], x[first + l * kThreads]);
    }
  }
  sum = warp_sum(sum);
  if (thread % 32 == 0) sums[thread / 32] = sum;
  __syncthreads();
  if (thread == 0) m.y[blockIdx.x] = sums[0] + sums[1] + sums[2] + sums[3];
}

void start(const Matvec& m, Stream stream) {
  stream.overlaps = true;
  launch("a rung was started", stream, blocks(m.n_out), kThreads, 0, multiply, m);
}

}  // namespace

constexpr MatvecRung kBeforeTheWait{"6-before-the-wait", "weights are requested before x is there",
                                    Stored::kFloat32, start};

}  // namespace staircase::rungs::gpu_matvec
