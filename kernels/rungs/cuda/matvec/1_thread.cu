// The definition, with one thread per output.
//
// A row is n_in numbers long, so the lanes of a warp read addresses that far apart. Memory delivers 32 bytes
// for each lane, and the lane uses 4: 32 sectors for 128 useful bytes.
#include "kernels/rungs/cuda/matvec/matvec.cuh"

namespace staircase::rungs::gpu_matvec {
namespace {

constexpr int kThreads = 128;

__global__ void multiply(Matvec m) {
  const int o = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (o >= m.n_out) return;
  const float* const row = m.row<float>(o);
  float sum = 0.0f;
#pragma unroll 1  // rung 4 does that
  for (int i = 0; i < m.n_in; ++i) sum += row[i] * m.x[i];
  m.y[o] = sum;
}

void start(const Matvec& m, Stream stream) {
  launch("a rung was started", stream, blocks(divide_up(m.n_out, kThreads)), kThreads, 0, multiply, m);
}

}  // namespace

constexpr MatvecRung kThread{"1-thread", "a thread for each output", Stored::kFloat32, start};

}  // namespace staircase::rungs::gpu_matvec
