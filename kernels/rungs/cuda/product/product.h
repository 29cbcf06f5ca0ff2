// The ladder of y [rows, n_out] = x [rows, n_in] Wᵀ on a GPU, the product of prefill: one file per rung.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/cuda/launch.h"

namespace staircase::rungs::gpu_product {

using namespace cuda;

/// The type in which a rung reads W. With bfloat16, the rung also rounds x.
enum class Stored { kFloat32, kBFloat16 };

/// The operands, all in GPU memory. No kernel writes W. The previous kernel writes x.
struct Product {
  const float* x;            ///< [rows, stride]
  const void* w;             ///< [n_out, stride]
  std::uint16_t* rounded_x;  ///< [rows, stride], for rungs that round x to bfloat16
  float* y;                  ///< [rows, n_out]
  int rows, n_in, n_out;
  int stride;  ///< n_in rounded up to a multiple of 32; zeros fill W and x

  /// Row `r` of x, and row `o` of W. Past the last row they return the last one, whose products are not
  /// stored.
  __host__ __device__ const float* row_of_x(int r) const { return x + last(r, rows) * stride; }
  template <typename T>
  __host__ __device__ const T* row_of_w(int o) const {
    return static_cast<const T*>(w) + last(o, n_out) * stride;
  }
  __host__ __device__ const std::uint16_t* rounded_row(int r) const {
    return rounded_x + last(r, rows) * stride;
  }

 private:
  static __host__ __device__ std::int64_t last(int i, int count) { return i < count ? i : count - 1; }
};

struct ProductRung {
  std::string_view name;  ///< the name of its file, such as "3-registers"
  std::string_view idea;  ///< the idea in one line
  Stored stored;
  void (*start)(const Product& p, Stream stream);
};

std::span<const ProductRung> ladder();

/// Starts the kernel that writes rounded_x.
void round_x(const Product& p, Stream stream);

extern const ProductRung kThread, kSharedMemory, kRegisters, kTensorCores, kCopiesAhead, kBeforeTheWait;

}  // namespace staircase::rungs::gpu_product
