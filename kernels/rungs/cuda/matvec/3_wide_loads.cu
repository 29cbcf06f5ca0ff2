// Each lane reads 16 bytes at once, the maximum for one instruction, so a warp reads 512 bytes with one
// request instead of four. The bytes stay the same, with a quarter of the instructions.
#include "kernels/rungs/cuda/matvec/matvec.cuh"

namespace staircase::rungs::gpu_matvec {
namespace {

constexpr int kThreads = 128;

__global__ void multiply(Matvec m) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int o = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) / 32;
  if (o >= m.n_out) return;
  const auto* const row = reinterpret_cast<const float4*>(m.row<float>(o));
  const auto* const x = reinterpret_cast<const float4*>(m.x);
  float sum = 0.0f;
#pragma unroll 1  // rung 4 does that
  for (int i = lane; i < m.stride / 4; i += 32) sum += dot(row[i], x[i]);
  sum = warp_sum(sum);
  if (lane == 0) m.y[o] = sum;
}

void start(const Matvec& m, Stream stream) {
  launch("a rung was started", stream, blocks(divide_up(m.n_out, kThreads / 32)), kThreads, 0, multiply, m);
}

}  // namespace

constexpr MatvecRung kWideLoads{"3-wide-loads", "16 bytes a lane", Stored::kFloat32, start};

}  // namespace staircase::rungs::gpu_matvec
