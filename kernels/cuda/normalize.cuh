// Layer normalization of one row by one warp: what layer_norm does to every row, and products of a few rows
// to what they multiply.
//
// The row is read three times, but from memory only once: it stays in the L1 cache. The mean comes first and
// the variance from the differences to it: the sum of squares minus the squared mean would cancel, and the
// residual stream of a GPT-2 has a few features that are hundreds of times larger than the others.
#pragma once

#include "kernels/cuda/device_functions.cuh"

namespace staircase::cuda {

/// LayerNorm, as kernels take it.
struct Norm {
  const float *weight, *bias;  ///< [width]
  float epsilon;

  explicit Norm(const LayerNorm& norm)
      : weight(norm.weight.data<float>()), bias(norm.bias.data<float>()), epsilon(norm.epsilon) {}
};

/// out = norm(x) for one row, which may go to shared memory. Every lane of the warp must call it. A lane
/// takes kVector neighbouring elements at a time; `width` must be a multiple of that.
template <int kVector>
__device__ __forceinline__ void normalize_row(const float* x, const Norm& norm, int width, float* out) {
  constexpr int kStep = kWarp * kVector;
  const int first = static_cast<int>(threadIdx.x) % kWarp * kVector;

  float sum = 0.0f;
#pragma unroll 4
  for (int i = first; i < width; i += kStep) {
    const auto piece = load_vector<kVector>(x + i);
    for (int v = 0; v < kVector; ++v) sum += piece.values[v];
  }
  const float mean = warp_sum(sum) / static_cast<float>(width);

  float squares = 0.0f;
#pragma unroll 4
  for (int i = first; i < width; i += kStep) {
    const auto piece = load_vector<kVector>(x + i);
    for (int v = 0; v < kVector; ++v) squares += (piece.values[v] - mean) * (piece.values[v] - mean);
  }
  const float scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(width) + norm.epsilon);

#pragma unroll 4
  for (int i = first; i < width; i += kStep) {
    auto piece = load_vector<kVector>(x + i);
    const auto weight = load_vector<kVector>(norm.weight + i), bias = load_vector<kVector>(norm.bias + i);
    for (int v = 0; v < kVector; ++v)
      piece.values[v] = (piece.values[v] - mean) * scale * weight.values[v] + bias.values[v];
    *reinterpret_cast<Vector<float, kVector>*>(out + i) = piece;
  }
}

}  // namespace staircase::cuda
