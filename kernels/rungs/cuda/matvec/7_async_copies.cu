// Asynchronous copies (cp.async) bring weights to shared memory without occupying registers. So each thread
// can have eight loads in flight, 128 bytes, in a ring: it waits for the oldest, uses it, and requests the
// next into its slot. A thread reads only the weights that it copied itself, so the ring needs no barrier.
#include "kernels/rungs/cuda/matvec/matvec.cuh"

namespace staircase::rungs::gpu_matvec {
namespace {

constexpr int kThreads = 128, kStages = 8;

__global__ void multiply(Matvec m) {
  __shared__ float4 ring[kStages][kThreads];
  __shared__ float sums[kThreads / 32];
  const int thread = static_cast<int>(threadIdx.x), loads = m.stride / 4;
  const auto* const row = reinterpret_cast<const float4*>(m.row<float>(static_cast<int>(blockIdx.x)));
  const auto* const x = reinterpret_cast<const float4*>(m.x);
  // Each turn makes a group, even if it is empty, because the wait below counts groups.
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
    cp_async_wait_group<kStages - 1>();  // the oldest has arrived
    const int i = turn * kThreads + thread;
    if (i < loads) sum += dot(ring[turn % kStages][thread], x[i]);
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

constexpr MatvecRung kAsyncCopies{"7-async-copies", "a ring of copies to shared memory, 128 bytes a thread",
                                  Stored::kFloat32, start};

}  // namespace staircase::rungs::gpu_matvec
