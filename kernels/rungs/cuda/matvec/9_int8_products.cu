// Both W and x have 8 bits: __dp4a multiplies four pairs of bytes and adds the products to an integer. A
// first kernel rounds x once, in the same groups of 32 as W; rounding it again in each block would take
// longer than the products. y = Σ over groups of scale of W · scale of x · Σ of products of integers.
#include "kernels/rungs/cuda/matvec/matvec.cuh"

namespace staircase::rungs::gpu_matvec {
namespace {

constexpr int kThreads = 128, kStages = 8;

/// One warp per group of x.
__global__ void round_x(Matvec m) {
  let_next_begin();
  wait_for_previous();
  const int i = static_cast<int>(blockIdx.x * kGroup + threadIdx.x);
  const float scale = warp_max(fabsf(m.x[i])) / 127.0f;
  m.rounded_x[i] = static_cast<std::int8_t>(scale > 0.0f ? rintf(m.x[i] / scale) : 0.0f);
  if (threadIdx.x == 0) m.scales_of_x[blockIdx.x] = scale;
}

__global__ void multiply(Matvec m) {
  __shared__ uint4 ring[kStages][kThreads];
  __shared__ float sums[kThreads / 32];
  const int thread = static_cast<int>(threadIdx.x), loads = m.stride / 16;
  const auto* const row = reinterpret_cast<const uint4*>(m.row<std::int8_t>(static_cast<int>(blockIdx.x)));
  const float* const scales = m.scales + static_cast<std::int64_t>(blockIdx.x) * (m.stride / kGroup);
  const auto* const x = reinterpret_cast<const uint4*>(m.rounded_x);
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
    const int i = turn * kThreads + thread;  // two loads share a group
    if (i < loads) {
      const uint4 w = ring[turn % kStages][thread], own = x[i];
      int whole = __dp4a(static_cast<int>(w.x), static_cast<int>(own.x), 0);
      whole = __dp4a(static_cast<int>(w.y), static_cast<int>(own.y), whole);
      whole = __dp4a(static_cast<int>(w.z), static_cast<int>(own.z), whole);
      whole = __dp4a(static_cast<int>(w.w), static_cast<int>(own.w), whole);
      sum += static_cast<float>(whole) * (scales[i / 2] * m.scales_of_x[i / 2]);
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
  launch("x was rounded", stream, blocks(m.stride / kGroup), kGroup, 0, round_x, m);
  launch("a rung was started", stream, blocks(m.n_out), kThreads, 0, multiply, m);
}

}  // namespace

constexpr MatvecRung kInt8Products{"9-int8-products", "bytes times bytes, four to a sum", Stored::kInt8,
                                   start};

}  // namespace staircase::rungs::gpu_matvec
