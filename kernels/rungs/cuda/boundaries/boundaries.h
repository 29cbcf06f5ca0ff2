// The ladder of the boundaries between kernels, one file per rung. A token passes through a chain of
// products, like the layers of a model: x becomes W x, once for each matrix, and each product needs the whole
// previous result.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/cuda/launch.h"

namespace staircase::rungs::gpu_boundaries {

using namespace cuda;

constexpr int kThreads = 128;  ///< threads of a block: four warps
constexpr int kWidest = 1024;  ///< maximum width of x: a lane then keeps 32 weights of a row in registers

/// The operands, all in GPU memory. No kernel writes W. The previous kernel writes the first x.
struct Chain {
  const float* w;     ///< [layers, width, width]
  float* x;           ///< [2, width]: layer l reads vector l modulo 2 and writes the other vector
  unsigned* arrived;  ///< initially 0; for rungs in which blocks wait for each other
  int layers, width;  ///< the width is a multiple of 4
  int multiprocessors;
  cudaGraphExec_t* graph;  ///< in host memory; null until a rung records it

  __host__ __device__ const float* row(int layer, int output) const {
    return w + (static_cast<std::int64_t>(layer) * width + output) * width;
  }
  __host__ __device__ const float* input(int layer) const { return x + layer % 2 * width; }
  __host__ __device__ float* output(int layer) const { return x + (layer + 1) % 2 * width; }
};

struct BoundaryRung {
  std::string_view name;  ///< the name of its file, such as "3-graph"
  std::string_view idea;  ///< the idea in one line
  void (*start)(const Chain& c, Stream stream);
};

std::span<const BoundaryRung> ladder();

extern const BoundaryRung kWaits, kLaunches, kGraph, kBeforeTheWait, kOneKernel;

}  // namespace staircase::rungs::gpu_boundaries
