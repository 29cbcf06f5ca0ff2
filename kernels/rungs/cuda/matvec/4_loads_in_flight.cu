// Each lane requests four loads before it uses the first, so 64 bytes are in flight instead of 16. A load
// takes about 700 ns, and a multiprocessor needs 22 KB in flight for the full bandwidth (Little's law, for
// 4.2 TB/s and 132 multiprocessors).
#include "kernels/rungs/cuda/matvec/matvec.cuh"

namespace staircase::rungs::gpu_matvec {
namespace {

constexpr int kThreads = 128, kLoads = 4;

__global__ void multiply(Matvec m) {
  const int lane = static_cast<int>(threadIdx.x) % 32, loads = m.stride / 4;
  const int o = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) / 32;
  if (o >= m.n_out) return;
  const auto* const row = reinterpret_cast<const float4*>(m.row<float>(o));
  const auto* const x = reinterpret_cast<const float4*>(m.x);
  float sum = 0.0f;
  for (int first = lane; first < loads; first += kLoads * 32) {
    float4 own[kLoads];
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      if (first + l * 32 < loads) own[l] = row[first + l * 32];
    }
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      if (first + l * 32 < loads) sum += dot(own[l], x[first + l * 32]);
    }
  }
  sum = warp_sum(sum);
  if (lane == 0) m.y[o] = sum;
}

void start(const Matvec& m, Stream stream) {
  launch("a rung was started", stream, blocks(divide_up(m.n_out, kThreads / 32)), kThreads, 0, multiply, m);
}

}  // namespace

constexpr MatvecRung kLoadsInFlight{"4-loads-in-flight", "four loads before the first is used",
                                    Stored::kFloat32, start};

}  // namespace staircase::rungs::gpu_matvec
