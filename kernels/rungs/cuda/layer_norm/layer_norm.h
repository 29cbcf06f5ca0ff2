// The ladder of the layer norm on a GPU, one file per rung: y = (x - mean) / √(variance + ε) · weight + bias,
// for each row (Ba et al. 2016, section 3).
#pragma once

#include <span>
#include <string_view>

#include "kernels/cuda/launch.h"

namespace staircase::rungs::gpu_layer_norm {

using namespace cuda;

/// If a block shares a row, each thread keeps up to 8 numbers in registers; if a warp shares it, each lane
/// keeps up to 32.
constexpr int kThreads = 128, kWidest = 1024;

/// The operands, all in GPU memory. No kernel writes weight and bias. The previous kernel writes x.
struct LayerNorm {
  const float* x;       ///< [rows, width]
  const float* weight;  ///< [width]
  const float* bias;    ///< [width]
  float* y;             ///< [rows, width]
  int rows, width;      ///< `width` is at most kWidest
  float epsilon;
};

struct LayerNormRung {
  std::string_view name;  ///< the name of its file, such as "3-warp-sums"
  std::string_view idea;  ///< the idea in one line
  void (*start)(const LayerNorm& n, Stream stream);
};

std::span<const LayerNormRung> ladder();

extern const LayerNormRung kThread, kTree, kWarpSums, kRegisters, kOneReduction, kWarpPerRow, kBeforeTheWait;

}  // namespace staircase::rungs::gpu_layer_norm
