// The layout of weights in GPU memory: one row per output, so a warp reads its weights in order.
//
// In 8 and 4 bits, neighbouring inputs share a scale. A matrix first stores all values, [out, groups, bytes
// of a group], then all scales, [out, groups]. Zeros pad each row to whole groups, so every row begins at a
// multiple of 16 bytes.
#pragma once

#include "kernels/cuda/device_tensors.cuh"

namespace staircase::cuda {

/// Two neighbouring 4-bit weights, both with 8 added. The first is the lower half.
struct Int4Pair {
  std::uint8_t halves;
};

/// The properties of weights of the C++ type `Stored`. The general form is for floats: one weight per
/// element.
template <typename Stored>
struct Format {
  static constexpr bool kScaled = false;
  static constexpr int kInElement = 1;  ///< weights per element
  static constexpr int kBits = 8 * sizeof(Stored);
  using Scale = float;
};

template <>
struct Format<std::int8_t> {
  static constexpr bool kScaled = true;
  static constexpr int kInElement = 1, kBits = 8;
  static constexpr int kInputs = kGroup;  ///< inputs per group
  static constexpr int kLeast = -127, kMost = 127;
  using Scale = float;

  /// The scale of a group, given its weight furthest from zero.
  static __device__ Scale scale(float furthest) { return fabsf(furthest) / 127.0f; }
  /// Packs kInElement integers into one element.
  static __device__ std::int8_t pack(const int* whole) { return static_cast<std::int8_t>(whole[0]); }
};

template <>
struct Format<Int4Pair> {
  static constexpr bool kScaled = true;
  static constexpr int kInElement = 2, kBits = 4;
  static constexpr int kInputs = kInt4Group;
  static constexpr int kLeast = -8, kMost = 7;
  using Scale = __nv_bfloat16;

  static __device__ Scale scale(float furthest) { return narrow<Scale>(furthest / -8.0f); }
  static __device__ Int4Pair pack(const int* whole) {
    return {static_cast<std::uint8_t>((whole[0] + 8) | (whole[1] + 8) << 4)};
  }
};

/// Weight number `i` of neighbouring weights, without its scale.
template <typename Stored, int kCount>
__device__ __forceinline__ float weight_of(const Vector<Stored, kCount>& weights, int i) {
  return widen(weights.values[i]);
}
template <int kCount>
__device__ __forceinline__ float weight_of(const Vector<Int4Pair, kCount>& weights, int i) {
  return static_cast<float>(((weights.values[i / 2].halves >> i % 2 * 4) & 15) - 8);
}

/// The weights of one output.
template <typename Stored>
struct WeightRow {
  using Scale = typename Format<Stored>::Scale;
  static constexpr int kInElement = Format<Stored>::kInElement;

  const Stored* values;
  const Scale* scales;  ///< one for each group, if Stored has scales

  /// Loads kCount neighbouring weights, for weight_of. `first` must be a multiple of kCount.
  template <int kCount>
  __device__ __forceinline__ auto load(int first) const {
    auto weights = load_vector<divide_up(kCount, kInElement)>(values + first / kInElement);
    // A single weight may be in the upper half of its element.
    if constexpr (kCount < kInElement) weights.values[0].halves >>= first % kInElement * 4;
    return weights;
  }

  /// The scale of the group of `input`.
  __device__ __forceinline__ float scale(int input) const {
    if constexpr (Format<Stored>::kScaled) return widen(scales[input / Format<Stored>::kInputs]);
    return 1.0f;
  }

  /// The scale of the group of `input`, read through the read-only cache. That need not wait for the previous
  /// kernel.
  __device__ __forceinline__ float scale_once(int input) const {
    return widen(__ldg(scales + input / Format<Stored>::kInputs));
  }

  __device__ float operator[](int input) const { return weight_of(load<1>(input), 0) * scale(input); }
};

/// The weights of all outputs.
template <typename Stored>
struct WeightRows {
  using Scale = typename Format<Stored>::Scale;

  Stored* values;
  Scale* scales = nullptr;
  std::int64_t groups = 0;  ///< groups per row
  std::int64_t elements;    ///< elements per row

  explicit WeightRows(const Weight& weight)
      : values(weight.packed.data<Stored>()), elements(weight.in_features) {
    if constexpr (Format<Stored>::kScaled) {
      constexpr std::int64_t kInputs = Format<Stored>::kInputs;
      groups = divide_up(weight.in_features, kInputs);
      elements = groups * kInputs / Format<Stored>::kInElement;
      scales = reinterpret_cast<Scale*>(values + weight.out_features * elements);
    }
  }

  __device__ WeightRow<Stored> operator[](std::int64_t output) const {
    return {values + output * elements, scales + output * groups};
  }
};

/// Calls use(data) with the pointer to the C++ type of weights stored as `dtype`.
template <typename Use>
void with_weight_type(DType dtype, void* data, const Use& use) {
  if (dtype == DType::kInt8) {
    use(static_cast<std::int8_t*>(data));
  } else if (dtype == DType::kInt4) {
    use(static_cast<Int4Pair*>(data));
  } else {
    with_type(dtype, data, use);
  }
}

/// Calls use(WeightRows) with the rows of `weight`.
template <typename Use>
void with_rows(const Weight& weight, const Use& use) {
  with_weight_type(weight.packed.dtype(), weight.packed.data<void>(),
                   [&]<typename Stored>(Stored*) { use(WeightRows<Stored>(weight)); });
}

/// The shape of Weight::packed.
inline Shape packed_shape(DType dtype, std::int64_t in, std::int64_t out) {
  Shape shape{out, in};
  with_weight_type(dtype, nullptr, [&]<typename Stored>(Stored*) {
    if constexpr (Format<Stored>::kScaled) {
      constexpr std::int64_t kInputs = Format<Stored>::kInputs,
                             kBytes = kInputs / Format<Stored>::kInElement * sizeof(Stored) +
                                      sizeof(typename Format<Stored>::Scale);
      shape = {out, divide_up(in, kInputs), kBytes};
    }
  });
  return shape;
}

}  // namespace staircase::cuda
