// How weights lie in a GPU's memory: a row for each output, so that a warp reads them in order.
//
// In 8 bits all values come first, [out, groups, kGroup], then all scales, [out, groups]. A row is filled up
// with zeros to whole groups: so every row begins at a multiple of 16 bytes.
#pragma once

#include "kernels/cuda/device_functions.cuh"

namespace staircase::cuda {

/// The weights of one output.
template <typename Stored>
struct WeightRow {
  static constexpr bool kScaled = std::is_same_v<Stored, std::int8_t>;

  const Stored* values;
  const float* scales;  ///< one for kGroup values, where there are any

  /// What the value of that input, as those of its group, is to be multiplied by.
  __device__ float scale(int input) const {
    if constexpr (kScaled) return scales[input / kGroup];
    return 1.0f;
  }

  __device__ float operator[](int input) const { return widen(values[input]) * scale(input); }
};

/// The weights of all outputs.
template <typename Stored>
struct WeightRows {
  Stored* values;
  float* scales = nullptr;
  std::int64_t groups = 0;  ///< of a row
  std::int64_t width;       ///< of a row, in values

  explicit WeightRows(const Weight& weight)
      : values(weight.packed.data<Stored>()), width(weight.in_features) {
    if constexpr (WeightRow<Stored>::kScaled) {
      groups = divide_up(weight.in_features, kGroup);
      width = groups * kGroup;
      scales = reinterpret_cast<float*>(values + weight.out_features * width);
    }
  }

  __device__ WeightRow<Stored> operator[](std::int64_t output) const {
    return {values + output * width, scales + output * groups};
  }
};

/// Of Weight::packed.
inline std::vector<std::int64_t> packed_shape(DType dtype, std::int64_t in, std::int64_t out) {
  if (dtype != DType::kInt8) return {out, in};
  return {out, divide_up(in, kGroup), kGroup + static_cast<std::int64_t>(sizeof(float))};
}

/// Calls use(WeightRows) with those of the C++ type that the weights are kept in.
template <typename Use>
void with_rows(const Weight& weight, const Use& use) {
  if (weight.packed.dtype() == DType::kInt8) {
    use(WeightRows<std::int8_t>(weight));
    return;
  }
  with_type(weight.packed.dtype(), weight.packed.data<void>(),
            [&](auto* values) { use(WeightRows<std::remove_pointer_t<decltype(values)>>(weight)); });
}

}  // namespace staircase::cuda
