// Layer normalization, a warp for each row: what layer_norm does, and products to the rows that they
// multiply.
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

/// out = norm(x) for one row, rounded where To is narrower; it may go to shared memory. Every lane of the
/// warp must call it. A lane takes kVector neighbouring elements at a time; `width` must be a multiple of
/// that.
template <int kVector, typename To>
__device__ __forceinline__ void normalize_row(const float* x, const Norm& norm, int width, To* out) {
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
    const auto piece = load_vector<kVector>(x + i), weight = load_vector<kVector>(norm.weight + i),
               bias = load_vector<kVector>(norm.bias + i);
    Vector<To, kVector> normed;
    for (int v = 0; v < kVector; ++v)
      normed.values[v] = narrow<To>((piece.values[v] - mean) * scale * weight.values[v] + bias.values[v]);
    *reinterpret_cast<Vector<To, kVector>*>(out + i) = normed;
  }
}

constexpr int kNormThreads = 128;
constexpr int kNormRows = kNormThreads / kWarp;  // of a block

/// A warp for each row.
template <int kVector, typename To>
__global__ __launch_bounds__(kNormThreads) void normalize(const float* x, Norm norm, int rows, int width,
                                                          To* out) {
  take_turn();
  const int row = static_cast<int>(blockIdx.x) * kNormRows + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= rows) return;
  const std::int64_t place = static_cast<std::int64_t>(row) * width;
  normalize_row<kVector>(x + place, norm, width, out + place);
}

/// out = norm(x) for each row of x [rows, width], in the type of `out`.
template <typename To>
void launch_normalize(const Tensor& x, const LayerNorm& norm, To* out, Stream stream) {
  const std::int64_t rows = x.dim(0), width = x.dim(1);
  launch("layer_norm was started", stream, blocks(divide_up<std::int64_t>(rows, kNormRows)), kNormThreads, 0,
         width % 4 == 0 ? normalize<4, To> : normalize<1, To>, x.data<float>(), Norm(norm),
         static_cast<int>(rows), static_cast<int>(width), out);
}

}  // namespace staircase::cuda
