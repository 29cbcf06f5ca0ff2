// Normalizes a text before it is split.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/text/tokenizer_description.h"

namespace staircase {

/// Returns `text` with every `from`, which must not be empty, replaced by `to`.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

class Normalizer {
 public:
  /// Throws Error if a step needs normal form C and this build lacks it.
  explicit Normalizer(std::vector<Normalization> steps);

  /// Returns `text` after all changes. Invalid UTF-8 stays unchanged.
  std::string normalize(std::string_view text) const;

  /// Whether there are no steps, so that texts never change.
  bool empty() const { return steps_.empty(); }

 private:
  std::vector<Normalization> steps_;
};

}  // namespace staircase
