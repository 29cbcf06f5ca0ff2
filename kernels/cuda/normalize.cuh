// The norm of rows. `normalize` uses one block per row, and so do products that normalize their own rows.
// split_heads uses one warp per head.
//
// The row is read three times, or twice for an RMS norm, but only once from memory, because it stays in the
// L1 cache. The mean is computed first, then the variance from the differences to it. The mean of the squares
// minus the squared mean would lose precision to cancellation: a few features of GPT-2's residual stream are
// hundreds of times larger than the others.
//
// For a few rows, latency dominates: loading the row, one sum, another sum and the parameters wait for each
// other. So a thread requests several pieces at once, and its first parameters before the row arrives.
#pragma once

#include "kernels/cuda/device_tensors.cuh"

namespace staircase::cuda {

/// The mean and the scale of a row, for (x - mean) · scale before weight and bias.
struct RowScale {
  float mean, scale;
};

/// The weight and bias of kVector neighbouring elements.
template <int kVector>
struct NormParameters {
  Vector<float, kVector> weight, bias;
};

/// A Norm as kernels need it.
struct RowNorm {
  NormKind kind;
  const float *weight, *bias;  ///< [width], or null: 1 and 0
  float epsilon;

  explicit RowNorm(const Norm& norm) : kind(norm.kind), weight(), bias(), epsilon(norm.epsilon) {
    if (kind == NormKind::kNone) return;
    weight = norm.weight.data<float>();
    bias = norm.bias.data<float>();
  }

  /// Loads the parameters of the elements from i on. That need not wait for the previous kernel.
  template <int kVector>
  __device__ __forceinline__ NormParameters<kVector> parameters(int i) const {
    NormParameters<kVector> result{};
    if (weight != nullptr) result.weight = load_parameters<kVector>(weight + i);
    if (bias != nullptr) result.bias = load_parameters<kVector>(bias + i);
    return result;
  }

  /// Normalizes elements of a row, given their parameters `own`.
  template <int kVector>
  __device__ __forceinline__ Vector<float, kVector> apply(const RowScale& row, Vector<float, kVector> x,
                                                          const NormParameters<kVector>& own) const {
    for (int v = 0; v < kVector; ++v) {
      x.values[v] = (x.values[v] - row.mean) * row.scale;
      if (weight != nullptr) x.values[v] *= own.weight.values[v];
      if (bias != nullptr) x.values[v] += own.bias.values[v];
    }
    return x;
  }
};

/// Calls use(i, the kVector elements of the row from i on) for each piece of thread number `thread` of the
/// `sharers` threads that share the row. `width` must be a multiple of kVector.
template <int kVector, typename Use>
__device__ __forceinline__ void for_each_piece(const float* x, int width, int thread, int sharers,
                                               const Use& use) {
#pragma unroll 4
  for (int i = thread * kVector; i < width; i += sharers * kVector) use(i, load_vector<kVector>(x + i));
}

/// Computes the mean and the scale of one row, which threads share as in for_each_piece. sum_of(value)
/// returns the sum over all sharers. Each of them must call this function.
template <int kVector, typename Sum>
__device__ __forceinline__ RowScale scale_of_row(const float* x, const RowNorm& norm, int width, int thread,
                                                 int sharers, const Sum& sum_of) {
  if (norm.kind == NormKind::kNone) return {0.0f, 1.0f};

  float mean = 0.0f;
  if (norm.kind == NormKind::kLayer) {
    float sum = 0.0f;
    for_each_piece<kVector>(x, width, thread, sharers, [&](int, const Vector<float, kVector>& piece) {
      for (const float value : piece.values) sum += value;
    });
    mean = sum_of(sum) / static_cast<float>(width);
  }

  float squares = 0.0f;
  for_each_piece<kVector>(x, width, thread, sharers, [&](int, const Vector<float, kVector>& piece) {
    for (const float value : piece.values) squares += (value - mean) * (value - mean);
  });
  return {mean, 1.0f / sqrtf(sum_of(squares) / static_cast<float>(width) + norm.epsilon)};
}

constexpr int kNormThreads = 128;

/// Normalizes rows with a whole block. Construct it before wait_for_previous.
template <int kVector>
class BlockNorm {
 public:
  __device__ __forceinline__ BlockNorm(const RowNorm& norm, int width) : norm_(norm), width_(width) {
#pragma unroll
    for (int p = 0; p < kHeld; ++p) {
      const int i = first_ + p * kStep;
      if (i < width) held_[p] = norm.template parameters<kVector>(i);
    }
  }

  /// out = norm(x) for one row, rounded if To is narrower. With kAdds, out += norm(x). If `out` is shared
  /// memory, a barrier must follow before other threads read it. Every thread of the block must call this.
  template <bool kAdds = false, typename To>
  __device__ __forceinline__ void normalize(const float* x, To* out) const {
    const RowScale row = scale_of_row<kVector>(x, norm_, width_, static_cast<int>(threadIdx.x), kNormThreads,
                                               [](float value) { return block_sum<kNormThreads>(value); });
    const auto put = [&](int i, const NormParameters<kVector>& parameters) {
      auto normed = norm_.apply(row, load_vector<kVector>(x + i), parameters);
      if constexpr (kAdds) {
        const auto before = load_vector<kVector>(out + i);
        for (int v = 0; v < kVector; ++v) normed.values[v] += before.values[v];
      }
      Vector<To, kVector> rounded;
      for (int v = 0; v < kVector; ++v) rounded.values[v] = narrow<To>(normed.values[v]);
      *reinterpret_cast<Vector<To, kVector>*>(out + i) = rounded;
    };
    int i = first_;
#pragma unroll
    for (int p = 0; p < kHeld; ++p, i += kStep) {
      if (i < width_) put(i, held_[p]);
    }
#pragma unroll 1
    for (; i < width_; i += kStep) put(i, norm_.template parameters<kVector>(i));
  }

 private:
  static constexpr int kStep = kNormThreads * kVector, kHeld = 2;  // 1024 elements of a row

  const RowNorm& norm_;
  int width_, first_ = static_cast<int>(threadIdx.x) * kVector;
  NormParameters<kVector> held_[kHeld];
};

/// One block per row.
template <bool kAdds, int kVector, typename To>
__global__ __launch_bounds__(kNormThreads) void normalize_rows(const float* x, RowNorm norm, int width,
                                                               To* out) {
  let_next_begin();
  const BlockNorm<kVector> block_norm(norm, width);
  wait_for_previous();
  const std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * width;
  block_norm.template normalize<kAdds>(x + place, out + place);
}

/// out = norm(x) for each row of x [rows, width], in the type of `out`. With kAdds, out += norm(x).
template <bool kAdds, typename To>
void launch_normalize(const Tensor& x, const Norm& norm, To* out, Stream stream) {
  const std::int64_t rows = x.dim(0), width = x.dim(1);
  launch("normalize was started", stream, blocks(rows), kNormThreads, 0,
         width % 4 == 0 ? normalize_rows<kAdds, 4, To> : normalize_rows<kAdds, 1, To>, x.data<float>(),
         RowNorm(norm), static_cast<int>(width), out);
}

}  // namespace staircase::cuda
