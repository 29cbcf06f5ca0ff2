// A dense row-major array in the memory of one device.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

namespace staircase {

enum class DType { kFloat32, kFloat16, kBFloat16, kInt32, kInt8, kInt4 };

/// The name as Hugging Face writes it: "float32", "float16", "bfloat16", "int32", "int8" or "int4".
constexpr std::string_view to_string(DType dtype) {
  constexpr std::string_view kNames[] = {"float32", "float16", "bfloat16", "int32", "int8", "int4"};
  return kNames[static_cast<int>(dtype)];
}

/// The bytes of an element. An element of an int4 tensor is a byte that holds two numbers.
constexpr std::size_t size_of(DType dtype) {
  return dtype == DType::kInt8 || dtype == DType::kInt4          ? 1
         : dtype == DType::kFloat16 || dtype == DType::kBFloat16 ? 2
                                                                 : 4;
}

/// The dimensions of a tensor, the outermost first. They are stored inside the object, not on the heap,
/// because a pass creates hundreds of tensors, most of them views.
class Shape {
 public:
  static constexpr std::size_t kMost = 4;

  Shape() = default;
  /// Throws std::length_error for more than kMost dimensions.
  Shape(std::initializer_list<std::int64_t> dims) : Shape(dims.begin(), dims.size()) {}
  Shape(const std::vector<std::int64_t>& dims) : Shape(dims.data(), dims.size()) {}

  std::size_t size() const { return size_; }
  const std::int64_t* begin() const { return dims_.data(); }
  const std::int64_t* end() const { return dims_.data() + size_; }
  std::int64_t& operator[](std::size_t i) { return dims_[i]; }
  std::int64_t operator[](std::size_t i) const { return dims_[i]; }

  bool operator==(const Shape&) const = default;

 private:
  Shape(const std::int64_t* dims, std::size_t size) : size_(size) {
    if (size > kMost) throw std::length_error("a tensor has at most 4 dimensions");
    std::copy_n(dims, size, dims_.begin());
  }

  std::array<std::int64_t, kMost> dims_{};  // 0 beyond its size
  std::size_t size_ = 0;
};

/// The bytes of a tensor of this type and shape. Throws std::bad_alloc if no machine can have that many.
inline std::size_t bytes_of(DType dtype, const Shape& shape) {
  constexpr std::size_t kMost = std::numeric_limits<std::ptrdiff_t>::max();
  return std::accumulate(shape.begin(), shape.end(), size_of(dtype), [](std::size_t bytes, std::int64_t dim) {
    const auto count = static_cast<std::size_t>(dim);
    if (count > 0 && bytes > kMost / count) throw std::bad_alloc();
    return bytes * count;
  });
}

/// Weights in int8 have a float32 scale for each group of this many neighbouring inputs of an output. They
/// raise the perplexity of tales-6m by 0.09 %. Groups of 32 would halve that and make a token take a third
/// longer.
constexpr std::int64_t kGroup = 64;

/// Weights in int4 have a bfloat16 scale for each group of this many. They raise the perplexity of tales-6m
/// by 3.0 %. Storing a minimum beside each scale would take a ninth more memory and lower that to about 2 %.
constexpr std::int64_t kInt4Group = 32;

/// Whether weights of this type share scales in groups.
constexpr bool is_quantized(DType dtype) {
  return dtype == DType::kInt8 || dtype == DType::kInt4;
}

/// The bytes of a weight matrix with this many numbers, including its scales.
constexpr std::size_t matrix_bytes(DType dtype, std::size_t count) {
  if (dtype == DType::kInt4) return count / 2 + count / kInt4Group * size_of(DType::kBFloat16);
  const std::size_t scales = dtype == DType::kInt8 ? count / kGroup : 0;
  return count * size_of(dtype) + scales * size_of(DType::kFloat32);
}

/// A handle to memory of a device. Copies and views share the memory, which is freed with the last of them.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, const Shape& shape, std::shared_ptr<void> memory)
      : dtype_(dtype), shape_(shape), memory_(std::move(memory)) {}

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::int64_t dim(std::size_t i) const { return shape_[i]; }
  std::int64_t size() const {
    return std::accumulate(shape_.begin(), shape_.end(), std::int64_t{memory_ != nullptr},
                           std::multiplies<>());
  }
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * size_of(dtype_); }

  /// The elements, in the device's memory: the host may access them only if the device is the CPU.
  template <typename T>
  T* data() const {
    return static_cast<T*>(memory_.get());
  }

  /// The same memory from its start, with another shape that fits into it.
  Tensor reshaped(const Shape& shape) const { return viewed_as(dtype_, shape); }

  /// The same memory from its start as elements of another type, not converted: the numbers become
  /// meaningless.
  Tensor viewed_as(DType dtype, const Shape& shape) const { return Tensor(dtype, shape, memory_); }

  /// The `count` entries of the first dimension from `first` on, as a view: [count, ...].
  Tensor rows(std::int64_t first, std::int64_t count) const {
    Tensor view = *this;
    view.shape_[0] = count;
    const std::size_t row_bytes = shape_[0] == 0 ? 0 : bytes() / static_cast<std::size_t>(shape_[0]);
    view.memory_ =
        std::shared_ptr<void>(memory_, data<std::byte>() + static_cast<std::size_t>(first) * row_bytes);
    return view;
  }

 private:
  DType dtype_ = DType::kFloat32;
  Shape shape_;
  std::shared_ptr<void> memory_;
};

}  // namespace staircase
