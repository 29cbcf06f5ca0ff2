// One block computes a head, and its scores stay in shared memory, 4 bytes per position. One kernel replaces
// three, and neither scores nor weights go through memory.
#include "kernels/cuda/device_functions.cuh"
#include "kernels/rungs/cuda/attention/attention.h"

namespace staircase::rungs::gpu_attention {
namespace {

__global__ void attend(Attention a) {
  auto* const scores = reinterpret_cast<float*>(dynamic_shared_memory);
  const int thread = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.x);
  const int kv_head = head / a.group();
  const float* const query = a.query(head);
  float largest = -1e30f, sum = 0.0f;
  for (int p = thread; p < a.positions; p += kThreads) {
    const float* const key = a.key(kv_head, p);
    float score = 0.0f;
    for (int i = 0; i < a.stride; ++i) score += query[i] * key[i];
    scores[p] = score * a.scale;
    largest = fmaxf(largest, scores[p]);
  }
  largest = block_max<kThreads>(largest);
  for (int p = thread; p < a.positions; p += kThreads) sum += scores[p] = expf(scores[p] - largest);
  sum = block_sum<kThreads>(sum);  // its barriers also make all weights visible to all threads

  if (thread >= a.stride) return;
  float feature = 0.0f;
  for (int p = 0; p < a.positions; ++p) feature += scores[p] * a.value(kv_head, p)[thread];
  a.out[head * a.stride + thread] = feature / sum;
}

void start(const Attention& a, Stream stream) {
  const auto bytes = static_cast<std::size_t>(a.positions) * sizeof(float);
  launch("a rung was started", stream, blocks(a.n_head), kThreads, bytes, attend, a);
}

}  // namespace

constexpr AttentionRung kBlock{"2-block", "a block for each head, in one kernel", start};

}  // namespace staircase::rungs::gpu_attention
