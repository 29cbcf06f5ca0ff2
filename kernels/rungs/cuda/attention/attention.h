// The ladder of attention for one token on a GPU, one file per rung. For each head, out = softmax(q Kᵀ / √d)
// V over all positions of the sequence (Vaswani et al. 2017, section 3.2.1).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/cuda/launch.h"

namespace staircase::rungs::gpu_attention {

using namespace cuda;

constexpr int kThreads = 128;         ///< threads of a block
constexpr int kMostPositions = 8192;  ///< the limit of rungs that keep all scores of a head in shared memory
constexpr int kMostHeads = 8;         ///< query heads that share a head of keys
constexpr int kMostSplits = 32;       ///< blocks that share the keys of a head

/// The result of a part of the keys: its largest score, and the sum of exp(score - largest).
struct Part {
  float largest, sum;
};

/// The operands, all in GPU memory. The previous kernel writes the queries. `stride` is head_size rounded up
/// to a multiple of 32, and at most 128. Zeros fill the rest of each row.
struct Attention {
  const float* queries;  ///< [n_head, stride]
  const float* keys;     ///< [n_kv_head, positions, stride]
  const float* values;   ///< [n_kv_head, positions, stride]
  float* out;            ///< [n_head, stride]
  float* scores;         ///< [n_head, positions], for rungs that keep scores in GPU memory
  float* sums;           ///< [n_head, kMostSplits, stride], for rungs in which blocks share keys
  Part* parts;           ///< [n_head, kMostSplits]
  unsigned* done;        ///< [n_kv_head], zeros before and after a kernel
  int n_head, n_kv_head, positions, stride;
  float scale;  ///< 1 / √head_size

  __host__ __device__ int group() const { return n_head / n_kv_head; }
  __host__ __device__ const float* query(int head) const { return queries + head * stride; }
  __host__ __device__ const float* key(int kv_head, int position) const {
    return keys + (static_cast<std::int64_t>(kv_head) * positions + position) * stride;
  }
  __host__ __device__ const float* value(int kv_head, int position) const {
    return values + (static_cast<std::int64_t>(kv_head) * positions + position) * stride;
  }
};

struct AttentionRung {
  std::string_view name;  ///< the name of its file, such as "4-online"
  std::string_view idea;  ///< the idea in one line
  void (*start)(const Attention& a, Stream stream);
};

std::span<const AttentionRung> ladder();

extern const AttentionRung kThreeKernels, kBlock, kWideLoads, kOnline, kGroups, kSplitKeys, kLastBlock;

}  // namespace staircase::rungs::gpu_attention
