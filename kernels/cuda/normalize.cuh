// The norm of rows, a block for each: what `normalize` does, and products to the rows that they multiply; or
// a warp for each, as split_heads does it to every head.
//
// The row is read three times, or twice by an RMS norm, but from memory only once: it stays in the L1 cache.
// The mean comes first and the variance from the differences to it: the sum of squares minus the squared mean
// would cancel, and the residual stream of a GPT-2 has a few features that are hundreds of times larger than
// the others.
//
// A few rows take as long as one thing waits for the other: the row, a sum, another sum, the parameters. So a
// thread asks for several pieces at once, and for its first parameters before the row is there.
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

/// use(i, the kVector elements of the row from i on) for the pieces of one of `sharers` threads, who have the
/// whole row together. `width` must be a multiple of kVector.
template <int kVector, typename Use>
__device__ __forceinline__ void for_each_piece(const float* x, int width, int thread, int sharers,
                                               const Use& use) {
#pragma unroll 4
  for (int i = thread * kVector; i < width; i += sharers * kVector) use(i, load_vector<kVector>(x + i));
}

/// The mean and the scale of one row. Every lane of the warp must call it. A lane takes kVector neighbouring
/// elements at a time; `width` must be a multiple of that.
template <int kVector>
__device__ __forceinline__ RowScale scale_of_row(const float* x, const RowNorm& norm, int width) {
  if (norm.kind == NormKind::kNone) return {0.0f, 1.0f};
  const int lane = static_cast<int>(threadIdx.x) % kWarp;

  float mean = 0.0f;
  if (norm.kind == NormKind::kLayer) {
    float sum = 0.0f;
    for_each_piece<kVector>(x, width, lane, kWarp, [&](int, const Vector<float, kVector>& piece) {
      for (int v = 0; v < kVector; ++v) sum += piece.values[v];
    });
    mean = warp_sum(sum) / static_cast<float>(width);
  }

  float squares = 0.0f;
  for_each_piece<kVector>(x, width, lane, kWarp, [&](int, const Vector<float, kVector>& piece) {
    for (int v = 0; v < kVector; ++v) squares += (piece.values[v] - mean) * (piece.values[v] - mean);
  });
  return {mean, 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(width) + norm.epsilon)};
}

constexpr int kNormThreads = 128;

/// The norm of rows by a whole block. To be made before wait_for_previous: no kernel writes parameters.
template <int kVector>
class BlockNorm {
 public:
  __device__ __forceinline__ BlockNorm(const RowNorm& norm, int width) : norm_(norm), width_(width) {
#pragma unroll
    for (int p = 0; p < kHeld; ++p) {
      const int i = (p * kNormThreads + static_cast<int>(threadIdx.x)) * kVector;
      if (i < width) held_[p] = parameters(i);
    }
  }

  /// out = norm(x) for one row, rounded where To is narrower; it may go to shared memory, where other threads
  /// must wait for it. Every thread of the block must call it.
  template <typename To>
  __device__ __forceinline__ void normalize(const float* x, To* out) const {
    float sum = 0.0f, squares = 0.0f;
    if (norm_.kind == NormKind::kLayer) {
      for_each_piece<kVector>(x, width_, threadIdx.x, kNormThreads, [&](int, const Piece& piece) {
        for (const float value : piece.values) sum += value;
      });
      sum = block_sum<kNormThreads>(sum);
    }
    const float mean = sum / static_cast<float>(width_);
    for_each_piece<kVector>(x, width_, threadIdx.x, kNormThreads, [&](int, const Piece& piece) {
      for (const float value : piece.values) squares += (value - mean) * (value - mean);
    });
    squares = block_sum<kNormThreads>(squares);
    const float scale = 1.0f / sqrtf(squares / static_cast<float>(width_) + norm_.epsilon);
    const auto put = [&](int i, const Parameters& parameters) {
      const Piece piece = load_vector<kVector>(x + i);
      Vector<To, kVector> rounded;
      for (int v = 0; v < kVector; ++v) {
        float value = (piece.values[v] - mean) * scale;
        if (norm_.weight != nullptr) value *= parameters.weight.values[v];
        if (norm_.bias != nullptr) value += parameters.bias.values[v];
        rounded.values[v] = narrow<To>(value);
      }
      *reinterpret_cast<Vector<To, kVector>*>(out + i) = rounded;
    };
    int i = static_cast<int>(threadIdx.x) * kVector;
#pragma unroll
    for (int p = 0; p < kHeld; ++p, i += kNormThreads * kVector) {
      if (i < width_) put(i, held_[p]);
    }
#pragma unroll 1
    for (; i < width_; i += kNormThreads * kVector) put(i, parameters(i));
  }

 private:
  using Piece = Vector<float, kVector>;
  struct Parameters {
    Piece weight, bias;
  };

  /// Of kVector elements, from i on.
  __device__ __forceinline__ Parameters parameters(int i) const {
    Parameters result;
    if (norm_.weight != nullptr) result.weight = load_parameters<kVector>(norm_.weight + i);
    if (norm_.bias != nullptr) result.bias = load_parameters<kVector>(norm_.bias + i);
    return result;
  }

  static constexpr int kHeld = 2;  // 1024 elements of a row

  const RowNorm& norm_;
  int width_;
  Parameters held_[kHeld];
};

/// A block for each row.
template <int kVector, typename To>
__global__ __launch_bounds__(kNormThreads) void normalize_rows(const float* x, RowNorm norm, int width,
                                                               To* out) {
  let_next_begin();
  const BlockNorm<kVector> block_norm(norm, width);
  wait_for_previous();
  const std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * width;
  block_norm.normalize(x + place, out + place);
}

/// out = norm(x) for each row of x [rows, width], in the type of `out`.
template <typename To>
void launch_normalize(const Tensor& x, const Norm& norm, To* out, Stream stream) {
  const std::int64_t rows = x.dim(0), width = x.dim(1);
  launch("normalize was started", stream, blocks(rows), kNormThreads, 0,
         width % 4 == 0 ? normalize_rows<4, To> : normalize_rows<1, To>, x.data<float>(), RowNorm(norm),
         static_cast<int>(width), out);
}

}  // namespace staircase::cuda
