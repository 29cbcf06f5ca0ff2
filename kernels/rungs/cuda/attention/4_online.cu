// The keys are processed in pieces of 128. Their weights are relative to the largest score so far. When a
// larger score comes, all earlier sums shrink (online softmax). So shared memory holds only the scores of one
// piece, and a sequence of any length fits.
#include "kernels/rungs/cuda/attention/attention.cuh"

namespace staircase::rungs::gpu_attention {
namespace {

/// scores[k] = query · key first + k / √d, for `count` positions.
__device__ void score_keys(const Attention& a, int head, int first, int count, float* scores) {
  const auto* const query = reinterpret_cast<const float4*>(a.query(head));
  const int thread = static_cast<int>(threadIdx.x);
  for (int begin = 0; begin < count; begin += kThreads / 8) {
    const int k = begin + thread / 8;
    const auto* const key =
        reinterpret_cast<const float4*>(a.key(head / a.group(), first + min(k, count - 1)));
    float score = 0.0f;
    for (int i = thread % 8; i < a.stride / 4; i += 8) score += dot(query[i], key[i]);
    score = warp_sum<8>(score);
    if (thread % 8 == 0 && k < count) scores[k] = score * a.scale;
  }
}

/// Turns the scores of a piece into weights. Adds the thread's own weight to `part`, and returns the factor
/// by which all earlier sums shrink.
__device__ float weigh(float* scores, int count, Part& part) {
  const int thread = static_cast<int>(threadIdx.x);
  const float score = thread < count ? scores[thread] : -1e30f;
  const float largest = fmaxf(part.largest, block_max<kThreads>(score));
  const float weight = thread < count ? expf(score - largest) : 0.0f;
  const float shrink = expf(part.largest - largest);
  part = {largest, part.sum * shrink + weight};
  scores[thread] = weight;
  return shrink;
}

__global__ void attend(Attention a) {
  __shared__ float scores[kThreads];
  const int head = static_cast<int>(blockIdx.x);
  const Rows own(a.stride);
  Part part{-1e30f, 0.0f};
  float4 features{};
  for (int first = 0; first < a.positions; first += kThreads) {
    const int count = min(kThreads, a.positions - first);
    score_keys(a, head, first, count, scores);
    __syncthreads();
    const float shrink = weigh(scores, count, part);
    __syncthreads();
    features = scaled(features, shrink);
    for (int k = own.row; own.row < own.rows && k < count; k += own.rows) {
      const auto* const value = reinterpret_cast<const float4*>(a.value(head / a.group(), first + k));
      add(features, value[own.column], scores[k]);
    }
    __syncthreads();  // the next piece overwrites the scores
  }
  features = add_rows(own, features);
  const float sum = block_sum<kThreads>(part.sum);
  auto* const out = reinterpret_cast<float4*>(a.out + head * a.stride);
  if (own.row == 0) out[own.column] = scaled(features, 1.0f / sum);
}

void start(const Attention& a, Stream stream) {
  launch("a rung was started", stream, blocks(a.n_head), kThreads, 0, attend, a);
}

}  // namespace

constexpr AttentionRung kOnline{"4-online", "keys in pieces, and one pass", start};

}  // namespace staircase::rungs::gpu_attention
