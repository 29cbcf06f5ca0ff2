// The ladder of the softmax on a GPU, a file a rung: y = exp(x - largest) / Σ exp(x - largest), for each row.
#pragma once

#include <span>
#include <string_view>

#include "kernels/cuda/launch.h"

namespace staircase::rungs::gpu_softmax {

using namespace cuda;

/// Threads of a block, and the most blocks that share a row.
constexpr int kThreads = 128, kBlocks = 64;

/// What a part of a row adds up to: its largest number, and the sum of exp(x - largest).
struct Part {
  float largest, sum;
};

/// The operands, all in the GPU's memory.
struct Softmax {
  const float* x;  ///< [rows, width]
  float* y;        ///< [rows, width]
  Part* parts;     ///< [rows, kBlocks], for rungs that share a row among blocks
  int rows, width;
};

struct SoftmaxRung {
  std::string_view name;  ///< "3-online", like its file
  std::string_view idea;  ///< in one line
  void (*start)(const Softmax& s, Stream stream);
};

std::span<const SoftmaxRung> ladder();

extern const SoftmaxRung kThread, kBlock, kOnline, kSplit;

}  // namespace staircase::rungs::gpu_softmax
