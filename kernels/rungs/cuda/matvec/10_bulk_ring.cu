// One thread fills the ring for all: a bulk copy brings 2 KB of W with one instruction, instead of 128
// threads that compute 128 addresses. It ends at an mbarrier, which counts the bytes that arrive and has a
// phase for each turn of its slot: parity 0, then 1, then 0.
#include "kernels/rungs/cuda/matvec/bulk_copies.cuh"
#include "kernels/rungs/cuda/matvec/matvec.cuh"

namespace staircase::rungs::gpu_matvec {
namespace {

constexpr int kThreads = 128, kStages = 8, kBytes = kThreads * 16;

/// A warp for each group of x.
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
  __shared__ std::uint64_t arrived[kStages];
  __shared__ float sums[kThreads / 32];
  const int thread = static_cast<int>(threadIdx.x), turns = (m.stride + kBytes - 1) / kBytes;
  const auto* const row = m.row<std::int8_t>(static_cast<int>(blockIdx.x));
  const float* const scales = m.scales + static_cast<std::int64_t>(blockIdx.x) * (m.stride / kGroup);
  const auto* const x = reinterpret_cast<const uint4*>(m.rounded_x);
  const auto request = [&](int turn) {
    const auto bytes = static_cast<unsigned>(min(kBytes, m.stride - turn * kBytes));
    mbarrier_arrive_expecting(&arrived[turn % kStages], bytes);
    copy_in_bulk(ring[turn % kStages], row + turn * kBytes, bytes, &arrived[turn % kStages]);
  };
  if (thread == 0) {
    for (int stage = 0; stage < kStages; ++stage) mbarrier_init(&arrived[stage], 1);
    mbarriers_are_ready();
    for (int turn = 0; turn < min(kStages, turns); ++turn) request(turn);
  }
  __syncthreads();  // all threads see the mbarriers
  let_next_begin();
  wait_for_previous();

  float sum = 0.0f;
  for (int turn = 0; turn < turns; ++turn) {
    mbarrier_wait(&arrived[turn % kStages], static_cast<unsigned>(turn / kStages % 2));
    const int i = turn * kThreads + thread;
    if (i < m.stride / 16) {
      const uint4 w = ring[turn % kStages][thread], own = x[i];
      int whole = __dp4a(static_cast<int>(w.x), static_cast<int>(own.x), 0);
      whole = __dp4a(static_cast<int>(w.y), static_cast<int>(own.y), whole);
      whole = __dp4a(static_cast<int>(w.z), static_cast<int>(own.z), whole);
      whole = __dp4a(static_cast<int>(w.w), static_cast<int>(own.w), whole);
      sum += static_cast<float>(whole) * (scales[i / 2] * m.scales_of_x[i / 2]);
    }
    if (turn + kStages >= turns) continue;
    __syncthreads();  // all have used the slot
    if (thread == 0) request(turn + kStages);
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

constexpr MatvecRung kBulkRing{"10-bulk-ring", "one thread copies for all, 2 KB at a time", Stored::kInt8,
                               start};

}  // namespace staircase::rungs::gpu_matvec
