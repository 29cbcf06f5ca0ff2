// What speculative decoding requires of a drafter: a smaller model, or the text itself.
#pragma once

#include <random>
#include <vector>

#include "common/decoding/results.h"
#include "sampling.h"

namespace staircase {

using Distributions = std::vector<std::vector<float>>;  ///< [tokens][vocab_size]

/// Proposes tokens for the target to verify.
class Drafter {
 public:
  virtual ~Drafter() = default;

  /// Memory that the drafter's cache used, if it has one.
  virtual CacheUse use() const { return {}; }

  /// Appends up to `count` tokens to `text`, which can be any text, and returns the distribution of each.
  virtual Distributions propose(std::vector<int>& text, int count, const SamplingOptions& options,
                                std::mt19937& generator) = 0;
};

}  // namespace staircase
