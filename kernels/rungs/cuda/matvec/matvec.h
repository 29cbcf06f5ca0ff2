// The ladder of y [n_out] = W [n_out, n_in] x [n_in] on a GPU, the product of decoding: one file per rung.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/cuda/launch.h"

namespace staircase::rungs::gpu_matvec {

using namespace cuda;

/// The type in which a rung reads W. In 8 bits, 32 inputs of a row share a scale.
enum class Stored { kFloat32, kBFloat16, kInt8 };

constexpr int kGroup = 32;

/// The operands, all in GPU memory. No kernel writes W. The previous kernel writes x.
struct Matvec {
  const float* x;          ///< [stride]
  const void* w;           ///< [n_out, stride]
  const float* scales;     ///< [n_out, stride / kGroup], in 8 bits
  float* y;                ///< [n_out]
  std::int8_t* rounded_x;  ///< [stride] and [stride / kGroup], for rungs that round x
  float* scales_of_x;
  int n_in, n_out;
  int stride;  ///< n_in rounded up to a multiple of kGroup; zeros fill W and x

  /// Row `o` of W. T must be the type that W is stored in.
  template <typename T>
  __host__ __device__ const T* row(int o) const {
    return static_cast<const T*>(w) + static_cast<std::int64_t>(o) * stride;
  }
};

struct MatvecRung {
  std::string_view name;  ///< the name of its file, such as "3-wide-loads"
  std::string_view idea;  ///< the idea in one line
  Stored stored;
  void (*start)(const Matvec& m, Stream stream);
};

std::span<const MatvecRung> ladder();

extern const MatvecRung kThread, kWarpPerOutput, kWideLoads, kLoadsInFlight, kSplitRows, kBeforeTheWait,
    kAsyncCopies, kBFloat16, kInt8Products, kBulkRing;

}  // namespace staircase::rungs::gpu_matvec
