// The ladder of the softmax on a GPU, one file per rung: y = exp(x - largest) / Σ exp(x - largest), for each
// row.
#pragma once

#include <span>
#include <string_view>

#include "kernels/cuda/launch.h"

namespace staircase::rungs::gpu_softmax {

using namespace cuda;

/// The threads of a block, and the maximum number of blocks that share a row.
constexpr int kThreads = 128, kBlocks = 64;

/// The result of a part of a row: its largest number, and the sum of exp(x - largest).
struct Part {
  float largest, sum;
};

/// The operands, all in GPU memory.
struct Softmax {
  const float* x;  ///< [rows, width]
  float* y;        ///< [rows, width]
  Part* parts;     ///< [rows, kBlocks], for rungs in which blocks share a row
  int rows, width;
};

struct SoftmaxRung {
  std::string_view name;  ///< the name of its file, such as "3-online"
  std::string_view idea;  ///< the idea in one line
  void (*start)(const Softmax& s, Stream stream);
};

std::span<const SoftmaxRung> ladder();

extern const SoftmaxRung kThread, kBlock, kOnline, kSplit;

}  // namespace staircase::rungs::gpu_softmax
