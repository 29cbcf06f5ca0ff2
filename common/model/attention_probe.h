// The attention weights of one head, recomputed on the host: the attention kernels hold only a few rows of
// them at a time.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/device.h"

namespace staircase {

/// A head of a model. Layers and heads count from 0, as in the names of the weights.
struct AttentionHead {
  int layer = 0;
  int head = 0;
};

/// What the new tokens of a sequence attend to.
struct AttentionWeights {
  std::vector<int> tokens;               ///< the tokens of all positions that they see; the new ones last
  std::vector<std::vector<float>> rows;  ///< a weight for each position up to the new token's; 0 before the
                                         ///< layer's window
};

/// Computes softmax(q Kᵀ / sqrt(head_size)) of one head in each forward pass, in float32, from the queries
/// and keys that the device holds.
class AttentionProbe {
 public:
  explicit AttentionProbe(AttentionHead head) : head_(head) {}

  int layer() const { return head_.layer; }

  /// Begins a pass. `sequences` are the new tokens of each sequence, and `starts` how many positions its row
  /// of the cache held before. Both must stay in memory until the pass ends.
  void begin(std::span<const std::span<const int>> sequences, std::span<const std::int32_t> starts);

  /// Computes the weights from the layer's queries, [n_tokens, n_head · head_size], and keys, which the
  /// device has just computed. Throws Error for a non-finite score.
  void compute(Device& device, const Tensor& queries, const KeysValues& keys_values);

  /// One entry per sequence of the pass, empty for a sequence that rests. A token that the model read before
  /// this probe existed is -1.
  std::span<const AttentionWeights> weights() const { return weights_; }

 private:
  AttentionHead head_;
  std::span<const std::span<const int>> sequences_;
  std::span<const std::int32_t> starts_;
  std::vector<AttentionWeights> weights_;
  std::unordered_map<std::size_t, int> known_;  // the token of each key, by the hash of the key
};

}  // namespace staircase
