// The last block to finish merges the parts of its heads, which makes the second kernel unnecessary. Each
// block increments an atomic counter. Fences order its own sums before the count, and the count before its
// reads.
#include "kernels/rungs/cuda/attention/split.cuh"

namespace staircase::rungs::gpu_attention {
namespace {

/// Merges the parts of a head, as in rung 6.
__device__ void merge(const Attention& a, int head, int splits) {
  const int thread = static_cast<int>(threadIdx.x);
  const Part* const parts = a.parts + head * kMostSplits;
  float largest = parts[0].largest, sum = 0.0f, feature = 0.0f;
  for (int s = 1; s < splits; ++s) largest = fmaxf(largest, parts[s].largest);
  for (int s = 0; s < splits; ++s) {
    const float weight = expf(parts[s].largest - largest);
    sum += parts[s].sum * weight;
    if (thread < a.stride) feature += a.sums[(head * kMostSplits + s) * a.stride + thread] * weight;
  }
  if (thread < a.stride) a.out[head * a.stride + thread] = feature / sum;
}

/// Whether this block is the last of the blocks that share its keys. Leaves the counter at 0.
__device__ bool is_last(unsigned* done, unsigned splits) {
  __shared__ bool last;
  __syncthreads();  // the whole block has stored its sums
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicInc(done, splits - 1) == splits - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}

__global__ void attend(Attention a, int share) {
  const int kv_head = static_cast<int>(blockIdx.y), begin = static_cast<int>(blockIdx.x) * share;
  attend_to(a, kv_head, begin, min(begin + share, a.positions));
  if (!is_last(a.done + kv_head, gridDim.x)) return;
  for (int h = 0; h < a.group(); ++h) merge(a, kv_head * a.group() + h, static_cast<int>(gridDim.x));
}

void start(const Attention& a, Stream stream) {
  const int share = share_of(a);
  const dim3 grid(blocks(divide_up(a.positions, share)), blocks(a.n_kv_head));
  launch("a rung was started", stream, grid, kThreads, 0, attend, a, share);
}

}  // namespace

constexpr AttentionRung kLastBlock{"7-last-block", "the last block to finish merges", start};

}  // namespace staircase::rungs::gpu_attention
