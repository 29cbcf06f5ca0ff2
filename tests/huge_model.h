// A model with so large a vocabulary that the logits of a small batch are more than an int can number. Its
// device counts and computes nothing, so that they take no memory.
#pragma once

#include "common/model/gpt2.h"

namespace staircase {

/// The rows of logits of which the last one begins at number 2^31.
constexpr int kHugeRows = 129;

/// With 2^24 tokens in the vocabulary and 8 positions. The logits in row r of a pass are 0, but for token
/// r + 1, which has 1.
Gpt2 huge_model();

/// So many prompts of one token.
inline std::vector<std::vector<int>> huge_prompts() {
  return std::vector<std::vector<int>>(kHugeRows, std::vector<int>{0});
}

}  // namespace staircase
