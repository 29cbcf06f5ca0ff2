// The definition, with one kernel for each step: the scores, their softmax, and the weighted mean of the
// values. Each kernel ends before the next begins, so scores and weights go through memory.
#include "kernels/cuda/device_functions.cuh"
#include "kernels/rungs/cuda/attention/attention.h"

namespace staircase::rungs::gpu_attention {
namespace {

/// One thread per position.
__global__ void score(Attention a) {
  const int position = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  if (position >= a.positions) return;
  const float *const query = a.query(head), *const key = a.key(head / a.group(), position);
  float sum = 0.0f;
  for (int i = 0; i < a.stride; ++i) sum += query[i] * key[i];
  a.scores[head * a.positions + position] = sum * a.scale;
}

/// One block per head.
__global__ void soften(Attention a) {
  const int thread = static_cast<int>(threadIdx.x);
  float* const scores = a.scores + static_cast<int>(blockIdx.x) * a.positions;
  float largest = scores[0], sum = 0.0f;
  for (int p = thread; p < a.positions; p += kThreads) largest = fmaxf(largest, scores[p]);
  largest = block_max<kThreads>(largest);
  for (int p = thread; p < a.positions; p += kThreads) sum += expf(scores[p] - largest);
  sum = block_sum<kThreads>(sum);
  for (int p = thread; p < a.positions; p += kThreads) scores[p] = expf(scores[p] - largest) / sum;
}

/// One thread per feature.
__global__ void add_values(Attention a) {
  const int feature = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.x);
  if (feature >= a.stride) return;
  const float* const weights = a.scores + head * a.positions;
  float sum = 0.0f;
  for (int p = 0; p < a.positions; ++p) sum += weights[p] * a.value(head / a.group(), p)[feature];
  a.out[head * a.stride + feature] = sum;
}

void start(const Attention& a, Stream stream) {
  const dim3 grid(blocks(divide_up(a.positions, kThreads)), blocks(a.n_head));
  launch("scores were computed", stream, grid, kThreads, 0, score, a);
  launch("scores became weights", stream, blocks(a.n_head), kThreads, 0, soften, a);
  launch("values were added up", stream, blocks(a.n_head), kThreads, 0, add_values, a);
}

}  // namespace

constexpr AttentionRung kThreeKernels{"1-three-kernels", "scores, softmax and values, a kernel each", start};

}  // namespace staircase::rungs::gpu_attention
