// Measurements of tools/gpu-check on an NVIDIA GPU. Prefill: the time until the first token after a prompt,
// as a share of cuBLAS's own rate. Decoding, for one sequence and for batches: the rate, as a share of the
// memory bandwidth.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "bench/work.h"
#include "kernels/device.h"

namespace staircase::bench {

struct GpuOptions {
  std::filesystem::path model;
  DType dtype = DType::kBFloat16;
  int prompt_tokens = 512;
  std::vector<int> batches = {1, 8, 32};
  int new_tokens = 128;  ///< tokens that each sequence decodes after a prompt of 16 tokens
  int rounds = 5;        ///< samples per measurement; the median counts
  /// The size of the buffer that is copied to measure the limit: larger than any cache.
  std::size_t copy_bytes = std::size_t{256} << 20;
  int product_size = 8192;  ///< rows and columns of the matrices for cuBLAS's peak
};

/// The keys of the result:
///
///   device, dtype, weight_bytes   what was measured
///   copy_gb_per_s                 the limit of decoding, see below
///   cublas_size                   rows and columns of the square matrices of the next figure
///   cublas_tflop_per_s            cuBLAS's peak, the limit of prefill: one large product again and again
///   cublas_block_tflop_per_s      cuBLAS on the four products of the model's blocks, for that prompt
///   prompt_tokens, ttft_ms        the time from a prompt to the logits after it
///   prefill_tflop                 the prompt's prefill_operations
///   prefill_tflop_per_s           these in the time to the first token
///   prefill_percent_of_cublas, prefill_percent_of_cublas_block
///   decode                        [{batch, tokens_per_s, ms_per_step, gb_per_s, percent_of_copy}]
///
/// cuBLAS multiplies in the type of the weights or, for int8 and int4, in the type of the rows. TFLOP are
/// 10^12 operations; a multiply-add counts as two. Throws Error if the prompt or the new tokens do not fit
/// into the model's context.
nlohmann::json measure_gpu(const GpuOptions& options);

/// Returns how many GB per second the GPU's memory reads and writes while one buffer is copied to another.
double copy_gb_per_s(Device& device, std::size_t buffer_bytes);

/// Returns the rate, in 10^12 operations per second, at which cuBLAS multiplies `rows` rows by the weights of
/// all `products`. It uses `copies` sets of weights in turn, because a cache that holds one block's weights
/// would make it too fast. All matrices are random and of type `dtype`; the sums are float32. Float32 is
/// multiplied without TF32, as in the model. `device` must be the GPU.
double cublas_tflop_per_s(Device& device, DType dtype, std::int64_t rows,
                          const std::vector<Product>& products, int copies);

}  // namespace staircase::bench
