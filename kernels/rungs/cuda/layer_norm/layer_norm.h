// The ladder of the layer norm on a GPU, a file a rung: y = (x - mean) / √(variance + ε) · weight + bias, for
// each row (Ba et al. 2016, section 3).
#pragma once

#include <span>
#include <string_view>

#include "kernels/cuda/launch.h"

namespace staircase::rungs::gpu_layer_norm {

using namespace cuda;

/// A thread of a block of kThreads keeps up to 8 numbers of a row in registers, a lane of a warp 32.
constexpr int kThreads = 128, kWidest = 1024;

/// The operands, all in the GPU's memory. No kernel writes weight and bias. The kernel before writes x.
struct LayerNorm {
  const float* x;       ///< [rows, width]
  const float* weight;  ///< [width]
  const float* bias;    ///< [width]
  float* y;             ///< [rows, width]
  int rows, width;      ///< a row has kWidest numbers at most
  float epsilon;
};

struct LayerNormRung {
  std::string_view name;  ///< "3-warp-sums", like its file
  std::string_view idea;  ///< in one line
  void (*start)(const LayerNorm& n, Stream stream);
};

std::span<const LayerNormRung> ladder();

extern const LayerNormRung kThread, kTree, kWarpSums, kRegisters, kOneReduction, kWarpPerRow, kBeforeTheWait;

}  // namespace staircase::rungs::gpu_layer_norm
