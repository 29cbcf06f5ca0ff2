// Eight lanes share a key and read 16 bytes each, 128 neighbouring bytes together. In rung 2, 32 lanes read
// from 32 different keys. Threads also share the rows of values, so all of them work in the last loop.
#include "kernels/rungs/cuda/attention/attention.cuh"

namespace staircase::rungs::gpu_attention {
namespace {

/// scores[p] = query · key p / √d, for all positions.
__device__ void score_keys(const Attention& a, int head, float* scores) {
  const auto* const query = reinterpret_cast<const float4*>(a.query(head));
  const int thread = static_cast<int>(threadIdx.x);
  for (int first = 0; first < a.positions; first += kThreads / 8) {
    const int p = first + thread / 8;
    const auto* const key = reinterpret_cast<const float4*>(a.key(head / a.group(), min(p, a.positions - 1)));
    float score = 0.0f;
    for (int i = thread % 8; i < a.stride / 4; i += 8) score += dot(query[i], key[i]);
    score = warp_sum<8>(score);
    if (thread % 8 == 0 && p < a.positions) scores[p] = score * a.scale;
  }
}

/// Returns four features of the weighted sum of all values, in the threads with row 0.
__device__ float4 add_values(const Attention& a, int head, const Rows& own, const float* weights) {
  float4 sum{};
  for (int p = own.row; own.row < own.rows && p < a.positions; p += own.rows) {
    const auto* const value = reinterpret_cast<const float4*>(a.value(head / a.group(), p));
    add(sum, value[own.column], weights[p]);
  }
  return add_rows(own, sum);
}

__global__ void attend(Attention a) {
  auto* const scores = reinterpret_cast<float*>(dynamic_shared_memory);
  const int thread = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.x);
  score_keys(a, head, scores);
  __syncthreads();
  float largest = -1e30f, sum = 0.0f;
  for (int p = thread; p < a.positions; p += kThreads) largest = fmaxf(largest, scores[p]);
  largest = block_max<kThreads>(largest);
  for (int p = thread; p < a.positions; p += kThreads) sum += scores[p] = expf(scores[p] - largest);
  sum = block_sum<kThreads>(sum);

  const Rows own(a.stride);
  const float4 features = add_values(a, head, own, scores);
  auto* const out = reinterpret_cast<float4*>(a.out + head * a.stride);
  if (own.row == 0) out[own.column] = scaled(features, 1.0f / sum);
}

void start(const Attention& a, Stream stream) {
  const auto bytes = static_cast<std::size_t>(a.positions) * sizeof(float);
  launch("a rung was started", stream, blocks(a.n_head), kThreads, bytes, attend, a);
}

}  // namespace

constexpr AttentionRung kWideLoads{"3-wide-loads", "eight lanes share a key, 16 bytes each", start};

}  // namespace staircase::rungs::gpu_attention
