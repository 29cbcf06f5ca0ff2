// Mean and variance take one reduction. Each thread has the mean of its own numbers and the sum of their
// squared differences to it; two such parts merge into one (Chan et al. 1983). The mean of the squares minus
// the squared mean would also need one reduction, but loses precision if the mean is large.
//
// One barrier remains.
#include "kernels/cuda/device_functions.cuh"
#include "kernels/rungs/cuda/layer_norm/layer_norm.h"

namespace staircase::rungs::gpu_layer_norm {
namespace {

constexpr int kOwn = kWidest / kThreads;

struct alignas(16) Part {
  float count, mean, squares;
};

/// The count, mean and squares for all numbers of both parts.
__device__ Part merged(Part a, Part b) {
  const float count = a.count + b.count, share = count > 0.0f ? b.count / count : 0.0f;
  const float apart = b.mean - a.mean;
  return {count, a.mean + apart * share, a.squares + b.squares + apart * apart * a.count * share};
}

__global__ void normalize(LayerNorm n) {
  __shared__ Part warps[kThreads / 32];
  const int thread = static_cast<int>(threadIdx.x), first = static_cast<int>(blockIdx.x) * n.width;
  const auto for_each = [&](const auto& use) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      if (thread + j * kThreads < n.width) use(j, thread + j * kThreads);
    }
  };
  float own[kOwn];
  Part part{};
  for_each([&](int j, int i) { own[j] = n.x[first + i]; });
  for_each([&](int j, int) { part.mean += own[j], part.count += 1.0f; });
  if (part.count > 0.0f) part.mean /= part.count;
  for_each([&](int j, int) { part.squares += (own[j] - part.mean) * (own[j] - part.mean); });
  for (int distance = 16; distance > 0; distance /= 2) {
    part = merged(part, {__shfl_xor_sync(kAllLanes, part.count, distance),
                         __shfl_xor_sync(kAllLanes, part.mean, distance),
                         __shfl_xor_sync(kAllLanes, part.squares, distance)});
  }
  if (thread % 32 == 0) warps[thread / 32] = part;
  __syncthreads();
  const Part row = merged(merged(warps[0], warps[1]), merged(warps[2], warps[3]));
  const float scale = 1.0f / sqrtf(row.squares / static_cast<float>(n.width) + n.epsilon);
  for_each([&](int j, int i) { n.y[first + i] = (own[j] - row.mean) * scale * n.weight[i] + n.bias[i]; });
}

void start(const LayerNorm& n, Stream stream) {
  launch("a rung was started", stream, blocks(n.rows), kThreads, 0, normalize, n);
}

}  // namespace

constexpr LayerNormRung kOneReduction{"5-one-reduction", "mean and variance travel together", start};

}  // namespace staircase::rungs::gpu_layer_norm
