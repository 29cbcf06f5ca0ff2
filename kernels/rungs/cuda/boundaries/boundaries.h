// The ladder of the boundaries between kernels, a file a rung. A token passes a chain of products, as the
// layers of a model: x becomes W x, once for each matrix, and each product needs all of the one before.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/cuda/launch.h"

namespace staircase::rungs::gpu_boundaries {

using namespace cuda;

constexpr int kThreads = 128;  ///< of a block, four warps
constexpr int kWidest = 1024;  ///< numbers of x: a lane keeps 32 weights of a row in registers

/// The operands, all in the GPU's memory. No kernel writes W. The kernel before writes the first x.
struct Chain {
  const float* w;     ///< [layers, width, width]
  float* x;           ///< [2, width]: layer l reads number l modulo 2 and writes the other
  unsigned* arrived;  ///< 0 at first, for rungs whose blocks wait for each other
  int layers, width;  ///< the width is a multiple of 4
  int multiprocessors;
  cudaGraphExec_t* graph;  ///< of the host; null until a rung records it

  __host__ __device__ const float* row(int layer, int output) const {
    return w + (static_cast<std::int64_t>(layer) * width + output) * width;
  }
  __host__ __device__ const float* input(int layer) const { return x + layer % 2 * width; }
  __host__ __device__ float* output(int layer) const { return x + (layer + 1) % 2 * width; }
};

struct BoundaryRung {
  std::string_view name;  ///< "3-graph", like its file
  std::string_view idea;  ///< in one line
  void (*start)(const Chain& c, Stream stream);
};

std::span<const BoundaryRung> ladder();

extern const BoundaryRung kWaits, kLaunches, kGraph, kBeforeTheWait, kOneKernel;

}  // namespace staircase::rungs::gpu_boundaries
