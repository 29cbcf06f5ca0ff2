// What tools/gpu-check measures on an NVIDIA GPU: the time until the first token after a prompt, decoding of
// one sequence and of batches, and how much of the memory's bandwidth that is.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/tensor.h"

namespace staircase::bench {

struct GpuOptions {
  std::filesystem::path model;
  DType dtype = DType::kBFloat16;
  int prompt_tokens = 512;
  std::vector<int> batches = {1, 8, 32};
  int new_tokens = 128;                             ///< decoded by each sequence behind a prompt of 16
  int rounds = 5;                                   ///< samples of each measurement; the median counts
  std::size_t copy_bytes = std::size_t{256} << 20;  ///< copied to measure the limit, more than a cache holds
};

/// {"device", "dtype", "weight_bytes", "copy_gb_per_s", "prompt_tokens", "ttft_ms", "decode": [{"batch",
/// "tokens_per_s", "ms_per_step", "gb_per_s", "percent_of_copy"}]}. Throws Error when the prompt or the new
/// tokens do not fit into the model's context.
nlohmann::json measure_gpu(const GpuOptions& options);

/// Bytes that the GPU's memory reads and writes in a second while a buffer is copied to another one, in GB.
double copy_gb_per_s(std::size_t buffer_bytes);

}  // namespace staircase::bench
