// Several blocks share the keys of a head, because rung 5 uses only three of 132 multiprocessors if a model
// has three heads of keys. Each block stores its undivided sums, and the largest score that they are relative
// to. Blocks cannot wait for each other, so a second kernel merges their sums.
#include "kernels/rungs/cuda/attention/split.cuh"

namespace staircase::rungs::gpu_attention {
namespace {

__global__ void attend(Attention a, int share) {
  const int begin = static_cast<int>(blockIdx.x) * share;
  attend_to(a, static_cast<int>(blockIdx.y), begin, min(begin + share, a.positions));
}

/// One block per head.
__global__ void merge(Attention a, int splits) {
  const int thread = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.x);
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

void start(const Attention& a, Stream stream) {
  const int share = share_of(a), splits = divide_up(a.positions, share);
  const dim3 grid(blocks(splits), blocks(a.n_kv_head));
  launch("parts of the keys were attended to", stream, grid, kThreads, 0, attend, a, share);
  launch("the parts were merged", stream, blocks(a.n_head), kThreads, 0, merge, a, splits);
}

}  // namespace

constexpr AttentionRung kSplitKeys{"6-split-keys", "blocks share the keys of a head, in two kernels", start};

}  // namespace staircase::rungs::gpu_attention
