// A model with so large a vocabulary that the logits of a small batch are more than an int can number. Its
// device counts and computes nothing, so that they take no memory.
#pragma once

#include <cstdio>
#include <memory>

#include "common/model/model.h"

namespace staircase {

constexpr std::int64_t kHugeVocabulary = 1 << 24;
constexpr std::size_t kHugeRowBytes = kHugeVocabulary * sizeof(float);

/// The rows of logits of which the last one begins at number 2^31.
constexpr int kHugeRows = 129;

/// Memory for one row of logits, in many places.
class SharedRow {
 public:
  /// Rows one after another that share their memory: a write to one is in all. The same amount of memory
  /// before them cannot be read: an index that has become negative meets no other rows there.
  void* map(std::size_t rows) const;
  static void unmap(void* memory, std::size_t rows);

 private:
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{std::tmpfile(), std::fclose};
};

/// With 2^24 tokens in the vocabulary and 8 positions. The logits in row r of a pass are 0, but for token
/// r + 1, which has 1. Where rows share their memory, the logit of token t is -t in all of them.
Model huge_model(bool rows_share_memory = false);

/// This many prompts of one token.
inline std::vector<std::vector<int>> huge_prompts() {
  return std::vector<std::vector<int>>(kHugeRows, std::vector<int>{0});
}

}  // namespace staircase
