// The norm of rows, a warp for each: what `normalize` does, products to the rows that they multiply, and
// split_heads to each head.
//
// The row is read three times, or twice by an RMS norm, but from memory only once: it stays in the L1 cache.
// The mean comes first and the variance from the differences to it: the sum of squares minus the squared mean
// would cancel, and the residual stream of a GPT-2 has a few features that are hundreds of times larger than
// the others.
#pragma once

#include "kernels/cuda/device_functions.cuh"

namespace staircase::cuda {

/// What a row is moved and stretched by, before weight and bias: (x - mean) · scale.
struct RowScale {
  float mean, scale;
};

/// Norm, as kernels take it.
struct RowNorm {
  NormKind kind;
  const float *weight, *bias;  ///< [width], or null: 1 and 0
  float epsilon;

  explicit RowNorm(const Norm& norm) : kind(norm.kind), weight(), bias(), epsilon(norm.epsilon) {
    if (kind == NormKind::kNone) return;
    weight = norm.weight.data<float>();
    bias = norm.bias.data<float>();
  }

  /// kVector neighbouring elements of a row, from element i on.
  template <int kVector>
  __device__ __forceinline__ Vector<float, kVector> apply(const RowScale& row, const float* x, int i) const {
    auto normed = load_vector<kVector>(x + i);
    for (float& value : normed.values) value = (value - row.mean) * row.scale;
    if (weight != nullptr) {
      const auto weights = load_vector<kVector>(weight + i);
      for (int v = 0; v < kVector; ++v) normed.values[v] *= weights.values[v];
    }
    if (bias != nullptr) {
      const auto biases = load_vector<kVector>(bias + i);
      for (int v = 0; v < kVector; ++v) normed.values[v] += biases.values[v];
    }
    return normed;
  }
};

/// The mean and the scale of one row. Every lane of the warp must call it. A lane takes kVector neighbouring
/// elements at a time; `width` must be a multiple of that.
template <int kVector>
__device__ __forceinline__ RowScale scale_of_row(const float* x, const RowNorm& norm, int width) {
  constexpr int kStep = kWarp * kVector;
  const int first = static_cast<int>(threadIdx.x) % kWarp * kVector;
  if (norm.kind == NormKind::kNone) return {0.0f, 1.0f};

  float mean = 0.0f;
  if (norm.kind == NormKind::kLayer) {
    float sum = 0.0f;
#pragma unroll 4
    for (int i = first; i < width; i += kStep) {
      const auto piece = load_vector<kVector>(x + i);
      for (int v = 0; v < kVector; ++v) sum += piece.values[v];
    }
    mean = warp_sum(sum) / static_cast<float>(width);
  }

  float squares = 0.0f;
#pragma unroll 4
  for (int i = first; i < width; i += kStep) {
    const auto piece = load_vector<kVector>(x + i);
    for (int v = 0; v < kVector; ++v) squares += (piece.values[v] - mean) * (piece.values[v] - mean);
  }
  return {mean, 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(width) + norm.epsilon)};
}

/// out = norm(x) for one row, rounded where To is narrower; it may go to shared memory. The rest as above.
template <int kVector, typename To>
__device__ __forceinline__ void normalize_row(const float* x, const RowNorm& norm, int width, To* out) {
  const RowScale row = scale_of_row<kVector>(x, norm, width);
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) % kWarp * kVector; i < width; i += kWarp * kVector) {
    const auto normed = norm.template apply<kVector>(row, x, i);
    Vector<To, kVector> rounded;
    for (int v = 0; v < kVector; ++v) rounded.values[v] = narrow<To>(normed.values[v]);
    *reinterpret_cast<Vector<To, kVector>*>(out + i) = rounded;
  }
}

constexpr int kNormThreads = 128;
constexpr int kNormRows = kNormThreads / kWarp;  // of a block

/// A warp for each row.
template <int kVector, typename To>
__global__ __launch_bounds__(kNormThreads) void normalize_rows(const float* x, RowNorm norm, int rows,
                                                               int width, To* out) {
  take_turn();
  const int row = static_cast<int>(blockIdx.x) * kNormRows + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= rows) return;
  const std::int64_t place = static_cast<std::int64_t>(row) * width;
  normalize_row<kVector>(x + place, norm, width, out + place);
}

/// out = norm(x) for each row of x [rows, width], in the type of `out`.
template <typename To>
void launch_normalize(const Tensor& x, const Norm& norm, To* out, Stream stream) {
  const std::int64_t rows = x.dim(0), width = x.dim(1);
  launch("normalize was started", stream, blocks(divide_up<std::int64_t>(rows, kNormRows)), kNormThreads, 0,
         width % 4 == 0 ? normalize_rows<4, To> : normalize_rows<1, To>, x.data<float>(), RowNorm(norm),
         static_cast<int>(rows), static_cast<int>(width), out);
}

}  // namespace staircase::cuda
