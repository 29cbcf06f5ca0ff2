// W takes half the bytes: a bfloat16 number is the upper half of a float, so a shift or a mask widens it. The
// 16 bytes of a copy now hold 8 weights.
#include "kernels/rungs/cuda/matvec/matvec.cuh"

namespace staircase::rungs::gpu_matvec {
namespace {

constexpr int kThreads = 128, kStages = 8;

/// Multiplies the two weights of a word, the first in its lower half, by two numbers of x and adds the
/// products.
__device__ float times(unsigned weights, float x0, float x1) {
  return __uint_as_float(weights << 16) * x0 + __uint_as_float(weights & 0xffff0000u) * x1;
}

__global__ void multiply(Matvec m) {
  __shared__ uint4 ring[kStages][kThreads];
  __shared__ float sums[kThreads / 32];
  const int thread = static_cast<int>(threadIdx.x), loads = m.stride / 8;
  const auto* const row = reinterpret_cast<const uint4*>(m.row<std::uint16_t>(static_cast<int>(blockIdx.x)));
  const auto* const x = reinterpret_cast<const float4*>(m.x);
  const auto request = [&](int turn) {
    const int i = turn * kThreads + thread;
    if (i < loads) cp_async_16(&ring[turn % kStages][thread], row + i);
    cp_async_commit_group();
  };
  for (int turn = 0; turn < kStages; ++turn) request(turn);
  let_next_begin();
  wait_for_previous();

  float sum = 0.0f;
  for (int turn = 0; turn * kThreads < loads; ++turn) {
    cp_async_wait_group<kStages - 1>();
    const int i = turn * kThreads + thread;
    if (i < loads) {
      const uint4 own = ring[turn % kStages][thread];
      const float4 low = x[2 * i], high = x[2 * i + 1];
      sum += times(own.x, low.x, low.y) + times(own.y, low.z, low.w) + times(own.z, high.x, high.y) +
             times(own.w, high.z, high.w);
    }
    request(turn + kStages);
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

constexpr MatvecRung kBFloat16{"8-bfloat16", "W in half the bytes", Stored::kBFloat16, start};

}  // namespace staircase::rungs::gpu_matvec
