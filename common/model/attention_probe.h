// What one attention head attends to: its weights, computed again on the host. The attention kernels hold
// only a few rows of them at a time.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/device.h"

namespace staircase {

/// A head of a model. Both count from 0, as in the names of the weights.
struct AttentionHead {
  int layer = 0;
  int head = 0;
};

/// What the new tokens of a sequence attend to.
struct AttentionWeights {
  std::vector<int> tokens;               ///< of all positions that they see, the new ones last
  std::vector<std::vector<float>> rows;  ///< of each new token: a share for each position up to its own, 0
                                         ///< before the layer's window
};

/// Computes softmax(q Kᵀ / sqrt(head_size)) of one head in each forward pass, in float32 from the queries and
/// keys as the device has them.
class AttentionProbe {
 public:
  explicit AttentionProbe(AttentionHead head) : head_(head) {}

  int layer() const { return head_.layer; }

  /// Begins a pass: the new tokens of each sequence, and how many positions its row of the cache held before.
  /// Both must stay in memory until the pass ends.
  void begin(std::span<const std::span<const int>> sequences, std::span<const std::int32_t> starts);

  /// Reads the layer's queries, [n_tokens, n_head · head_size], and keys, as the device has left them.
  /// Throws Error for a score that is not finite.
  void compute(Device& device, const Tensor& queries, const KeysValues& keys_values);

  /// One per sequence of the pass; a resting one attends to nothing. A token that went through the model
  /// before this probe existed is -1.
  std::span<const AttentionWeights> weights() const { return weights_; }

 private:
  AttentionHead head_;
  std::span<const std::span<const int>> sequences_;
  std::span<const std::int32_t> starts_;
  std::vector<AttentionWeights> weights_;
  std::unordered_map<std::size_t, int> known_;  // the token of each key, by the key's hash
};

}  // namespace staircase
