// One warp per output: its 32 lanes read 32 neighbours, 128 bytes in 4 sectors, and use all of them. Each
// lane has a part of the sum; after five exchanges every lane has the whole sum.
#include "kernels/rungs/cuda/matvec/matvec.cuh"

namespace staircase::rungs::gpu_matvec {
namespace {

constexpr int kThreads = 128;

__global__ void multiply(Matvec m) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int o = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) / 32;
  if (o >= m.n_out) return;  // the whole warp
  const float* const row = m.row<float>(o);
  float sum = 0.0f;
#pragma unroll 1  // rung 4 does that
  for (int i = lane; i < m.stride; i += 32) sum += row[i] * m.x[i];
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, distance);
  }
  if (lane == 0) m.y[o] = sum;
}

void start(const Matvec& m, Stream stream) {
  launch("a rung was started", stream, blocks(divide_up(m.n_out, kThreads / 32)), kThreads, 0, multiply, m);
}

}  // namespace

constexpr MatvecRung kWarpPerOutput{"2-warp", "a warp for each output: neighbours read neighbours",
                                    Stored::kFloat32, start};

}  // namespace staircase::rungs::gpu_matvec
