// The ladder of attention of one token on a GPU, a file a rung. For each head, out = softmax(q Kᵀ / √d) V
// over all positions of its text (Vaswani et al. 2017, section 3.2.1).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/cuda/launch.h"

namespace staircase::rungs::gpu_attention {

using namespace cuda;

constexpr int kThreads = 128;         ///< of a block
constexpr int kMostPositions = 8192;  ///< of rungs that keep all scores of a head in shared memory
constexpr int kMostHeads = 8;         ///< of queries that share a head of keys
constexpr int kMostSplits = 32;       ///< blocks that share the keys of a head

/// What a part of the keys adds up to: its largest score, and the sum of exp(score - largest).
struct Part {
  float largest, sum;
};

/// The operands, all in the GPU's memory. The kernel before writes the queries. `stride` is head_size up to
/// the next multiple of 32; zeros fill the rows. It is 128 at most.
struct Attention {
  const float* queries;  ///< [n_head, stride]
  const float* keys;     ///< [n_kv_head, positions, stride]
  const float* values;   ///< [n_kv_head, positions, stride]
  float* out;            ///< [n_head, stride]
  float* scores;         ///< [n_head, positions], for rungs that keep them there
  float* sums;           ///< [n_head, kMostSplits, stride], for rungs whose blocks share keys
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
  std::string_view name;  ///< "4-online", like its file
  std::string_view idea;  ///< in one line
  void (*start)(const Attention& a, Stream stream);
};

std::span<const AttentionRung> ladder();

extern const AttentionRung kThreeKernels, kBlock, kWideLoads, kOnline, kGroups, kSplitKeys, kLastBlock;

}  // namespace staircase::rungs::gpu_attention
